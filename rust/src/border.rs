//! What Python sees: the same classes as its own twins have.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

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
#[pyclass(module = "mqsweep._core")]
pub struct Scan {
    inner: scan::Scan,
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
            inner: scan::Scan::new(settings),
        })
    }

    fn outgoing<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.inner.outgoing())
    }

    fn feed(&mut self, py: Python<'_>, data: &[u8]) -> PyResult<()> {
        let inner = &mut self.inner;
        if data.len() < LARGE {
            return Ok(inner.feed(data)?);
        }
        Ok(py.detach(|| inner.feed(data))?)
    }

    #[getter]
    fn done(&self) -> bool {
        self.inner.done()
    }

    #[getter]
    fn cursor<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.inner.cursor)
    }

    #[getter]
    fn active_scanned(&self) -> u64 {
        self.inner.active_scanned
    }

    #[getter]
    fn active_total(&self) -> u64 {
        self.inner.active_total
    }

    #[getter]
    fn stalled_scanned(&self) -> usize {
        self.inner.stalled_scanned
    }

    fn sightings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let inner = &self.inner;
        let seen = py
            .detach(|| inner.sightings())
            .ok_or_else(|| PyRuntimeError::new_err("the scan is not done"))?;
        let bytes =
            |ids: &[&[u8]]| -> Vec<_> { ids.iter().map(|id| PyBytes::new(py, id)).collect() };
        let mut stalled = Vec::with_capacity(seen.stalled.len());
        for (id, places, marked) in &seen.stalled {
            let distances = PyTuple::new(py, places.ascending())?;
            stalled.push((PyBytes::new(py, id), distances, *marked));
        }
        let fields = (
            stalled,
            bytes(&seen.locked_marks),
            bytes(&seen.strays),
            inner.active_scanned,
            inner.stalled_scanned,
        );
        let module = py.import(intern!(py, "mqsweep.scan"))?;
        module.getattr(intern!(py, "Sightings"))?.call1(fields)
    }
}
