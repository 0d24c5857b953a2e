//! The fast scan of mqsweep: bytes in, bytes out, no I/O.
//!
//! It only reads. What to do about what it saw is decided in Python, once, for both twins.

mod border;
mod check;
pub mod ids;
pub mod reply;
pub mod request;
pub mod scan;
pub mod sightings;

use pyo3::prelude::*;

/// `debug` or `release`, as this crate was built.
const BUILD_PROFILE: &str = if cfg!(debug_assertions) {
    "debug"
} else {
    "release"
};

// Nothing is shared between two objects but what never changes, so a free-threaded interpreter needs no lock for it.
#[pymodule(gil_used = false)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("build_profile", BUILD_PROFILE)?;
    module.add_class::<border::ReplyReader>()?;
    module.add_class::<border::Scan>()?;
    module.add_class::<border::Stalled>()?;
    module.add_class::<border::Names>()?;
    Ok(())
}
