//! What Python sees: the same classes as its own twins have.

use std::sync::{Arc, Mutex, MutexGuard};

use pyo3::exceptions::{PyIndexError, PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySlice, PyTuple};

use crate::ids::{CANDIDATE, Ids};
use crate::reply::{self, Fault};
use crate::scan::{self, Settings};

pyo3::import_exception!(mqsweep.errors, ProtocolError);
pyo3::import_exception!(mqsweep.errors, ServerReplyError);

/// Chunks from this size on are parsed with the interpreter released; below, releasing costs more than it gives.
const LARGE: usize = 4096;

impl From<Fault> for PyErr {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Protocol(text) => ProtocolError::new_err(text),
            Fault::Server(message) => ServerReplyError::new_err((Python::attach(|py| {
                PyBytes::new(py, &message).unbind()
            }),)),
        }
    }
}

/// Takes bytes as they come and gives out replies in order; see `mqsweep.reply.ReplyReader`.
#[pyclass(module = "mqsweep._core")]
#[derive(Default)]
pub struct ReplyReader {
    inner: reply::ReplyReader,
}

#[pymethods]
impl ReplyReader {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn feed(&mut self, data: &[u8]) {
        self.inner.feed(data);
    }

    #[getter]
    fn pending(&self) -> bool {
        self.inner.pending()
    }

    fn integer(&mut self) -> PyResult<Option<i64>> {
        Ok(self.inner.integer()?)
    }

    fn bulks<'py>(
        &mut self,
        py: Python<'py>,
        most: usize,
    ) -> PyResult<Option<Vec<Bound<'py, PyBytes>>>> {
        let found = self.inner.bulks(most)?;
        Ok(found.map(|ranges| self.elements(py, &ranges)))
    }

    fn flags(&mut self, most: usize) -> PyResult<Option<Vec<bool>>> {
        Ok(self.inner.flags(most)?)
    }

    #[allow(clippy::type_complexity)]
    fn scanned<'py>(
        &mut self,
        py: Python<'py>,
        most: usize,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, Vec<Bound<'py, PyBytes>>)>> {
        let found = self.inner.scanned(most)?;
        Ok(found.map(|(cursor, ranges)| (PyBytes::new(py, &cursor), self.elements(py, &ranges))))
    }
}

impl ReplyReader {
    fn elements<'py>(
        &self,
        py: Python<'py>,
        ranges: &[std::ops::Range<usize>],
    ) -> Vec<Bound<'py, PyBytes>> {
        ranges
            .iter()
            .map(|range| PyBytes::new(py, self.inner.element(range)))
            .collect()
    }
}

fn positive(value: i64) -> PyResult<usize> {
    match usize::try_from(value) {
        Ok(value) if value > 0 => Ok(value),
        _ => Err(PyValueError::new_err(
            "window, check and depth must be 1 or more",
        )),
    }
}

/// One pass over a queue; see `mqsweep.scan.Scan`.
#[pyclass(module = "mqsweep._core", frozen)]
pub struct Scan {
    inner: Mutex<scan::Scan>,
}

impl Scan {
    /// The scan itself, which nobody waits for: two threads at once are a mistake.
    fn lock(&self) -> PyResult<MutexGuard<'_, scan::Scan>> {
        self.inner
            .try_lock()
            .map_err(|_| PyRuntimeError::new_err("a scan is used from two threads at once"))
    }
}

#[pymethods]
impl Scan {
    #[new]
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (*, stalled, active, base, window=1200, check=100, depth=3, keep_locked=false, most_marks=None, cursor=b"0".to_vec()))]
    fn new(
        stalled: Vec<u8>,
        active: Vec<u8>,
        base: Vec<u8>,
        window: i64,
        check: i64,
        depth: i64,
        keep_locked: bool,
        most_marks: Option<usize>,
        cursor: Vec<u8>,
    ) -> PyResult<Self> {
        let [window, check, depth] = [positive(window)?, positive(check)?, positive(depth)?];
        let settings = Settings {
            stalled,
            active,
            base,
            window,
            check,
            depth,
            keep_locked,
            most_marks,
            cursor,
        };
        Ok(Self {
            inner: Mutex::new(scan::Scan::new(settings)),
        })
    }

    fn outgoing<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.lock()?.outgoing()))
    }

    fn feed(&self, py: Python<'_>, data: &[u8]) -> PyResult<()> {
        let inner = &mut *self.lock()?;
        if data.len() < LARGE {
            return Ok(inner.feed(data)?);
        }
        Ok(py.detach(|| inner.feed(data))?)
    }

    #[getter]
    fn done(&self) -> PyResult<bool> {
        Ok(self.lock()?.done())
    }

    #[getter]
    fn cursor<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.lock()?.cursor))
    }

    #[getter]
    fn active_scanned(&self) -> PyResult<u64> {
        Ok(self.lock()?.active_scanned)
    }

    #[getter]
    fn active_total(&self) -> PyResult<u64> {
        Ok(self.lock()?.active_total)
    }

    #[getter]
    fn stalled_scanned(&self) -> PyResult<usize> {
        Ok(self.lock()?.stalled_scanned)
    }

    fn sightings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let inner = &mut *self.lock()?;
        let seen = py
            .detach(|| inner.sightings())
            .ok_or_else(|| PyRuntimeError::new_err("the scan is not done"))?;
        let names = |numbers: &Arc<Vec<usize>>| Names {
            ids: Arc::clone(&seen.ids),
            numbers: Arc::clone(numbers),
        };
        let fields = (
            Stalled {
                ids: Arc::clone(&seen.ids),
                numbers: Arc::clone(&seen.stalled),
            },
            names(&seen.locked_marks),
            names(&seen.strays),
            inner.active_scanned,
            inner.stalled_scanned,
        );
        let module = py.import(intern!(py, "mqsweep.scan"))?;
        module.getattr(intern!(py, "Sightings"))?.call1(fields)
    }
}

/// Stalled jobs, oldest first; see `mqsweep.scan.Stalled`.
#[pyclass(module = "mqsweep._core", frozen, sequence)]
pub struct Stalled {
    ids: Arc<Ids>,
    numbers: Arc<Vec<usize>>,
}

impl Stalled {
    fn sight<'py>(&self, py: Python<'py>, number: usize) -> PyResult<Bound<'py, PyAny>> {
        let distances = match self.ids.several(number) {
            None => PyTuple::new(py, [self.ids.distance(number)])?,
            Some(several) => PyTuple::new(py, several)?,
        };
        let marked = self.ids.is(number, CANDIDATE);
        let sight = (PyBytes::new(py, self.ids.get(number)), distances, marked);
        Ok(sight.into_pyobject(py)?.into_any())
    }
}

#[pymethods]
impl Stalled {
    fn __len__(&self) -> usize {
        self.numbers.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, at: At<'py>) -> PyResult<Bound<'py, PyAny>> {
        at.of(py, &self.numbers, |number| self.sight(py, number))
    }

    /// Those that are marked, or those that are not.
    fn part(&self, py: Python<'_>, marked: bool) -> Self {
        let is_in = |number: &&usize| self.ids.is(**number, CANDIDATE) == marked;
        let numbers = py.detach(|| {
            if self.numbers.iter().all(|number| is_in(&number)) {
                return Arc::clone(&self.numbers);
            }
            Arc::new(self.numbers.iter().filter(is_in).copied().collect())
        });
        Self {
            ids: Arc::clone(&self.ids),
            numbers,
        }
    }
}

/// Ids, made into objects when they are asked for.
#[pyclass(module = "mqsweep._core", frozen, sequence)]
pub struct Names {
    ids: Arc<Ids>,
    numbers: Arc<Vec<usize>>,
}

#[pymethods]
impl Names {
    fn __len__(&self) -> usize {
        self.numbers.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, at: At<'py>) -> PyResult<Bound<'py, PyAny>> {
        at.of(py, &self.numbers, |number| {
            Ok(PyBytes::new(py, self.ids.get(number)).into_any())
        })
    }
}

/// Where in a sequence: one place, or some.
#[derive(FromPyObject)]
enum At<'py> {
    One(isize),
    Some(Bound<'py, PySlice>),
}

impl<'py> At<'py> {
    /// What stands there.
    fn of(
        self,
        py: Python<'py>,
        numbers: &[usize],
        make: impl Fn(usize) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let length = numbers.len().cast_signed();
        match self {
            Self::One(at) => {
                let from_start = if at < 0 { at + length } else { at };
                let found = usize::try_from(from_start).ok();
                let number = found
                    .and_then(|at| numbers.get(at))
                    .ok_or_else(|| PyIndexError::new_err("no such place"))?;
                make(*number)
            }
            Self::Some(slice) => {
                let range = slice.indices(length)?;
                let places =
                    (0..range.slicelength.cast_signed()).map(|i| range.start + i * range.step);
                let all: PyResult<Vec<_>> =
                    places.map(|at| make(numbers[at.cast_unsigned()])).collect();
                Ok(PyList::new(py, all?)?.into_any())
            }
        }
    }
}
