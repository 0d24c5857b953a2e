//! Puts the script where maturin takes it from, so that every wheel carries the same bytes.

use std::{env, fs, io, path::Path};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=lua");
    let out = env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?;
    for entry in fs::read_dir("lua")? {
        let path = entry?.path();
        if let (Some("lua"), Some(name)) =
            (path.extension().and_then(|e| e.to_str()), path.file_name())
        {
            fs::copy(&path, Path::new(&out).join(name))?;
        }
    }
    Ok(())
}
