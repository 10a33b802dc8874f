//! jemalloc's settings and counts, by name.
//!
//! *Thread safety*: any thread; jemalloc has a lock.

use crate::FarAllocError;
use std::ffi::{CString, c_void};
use std::ptr::{from_mut, null_mut};

fn control(
    name: &str,
    (old, old_bytes): (*mut c_void, *mut usize),
    (new, new_bytes): (*mut c_void, usize),
) -> Result<(), FarAllocError> {
    let c_name = CString::new(name).expect("the names here have no zeros");
    // SAFETY: the name ends with a zero. The callers' pointers are null, or valid for the sizes
    // beside them, which jemalloc compares with the type of the setting.
    let code =
        unsafe { tikv_jemalloc_sys::mallctl(c_name.as_ptr(), old, old_bytes, new, new_bytes) };
    if code == 0 {
        return Ok(());
    }
    let cause = std::io::Error::from_raw_os_error(code).to_string();
    Err(FarAllocError::Control { name: name.to_owned(), cause })
}

/// Reads a count.
pub(crate) fn read(name: &str) -> Result<usize, FarAllocError> {
    let (mut value, mut bytes) = (0_usize, size_of::<usize>());
    control(name, (from_mut(&mut value).cast(), &raw mut bytes), (null_mut(), 0))?;
    Ok(value)
}

/// Changes a setting. `T` is the C type that jemalloc documents for it.
pub(crate) fn write<T: Copy>(name: &str, mut value: T) -> Result<(), FarAllocError> {
    let new = (from_mut(&mut value).cast(), size_of::<T>());
    control(name, (null_mut(), null_mut()), new)
}

/// Carries out a command.
pub(crate) fn run(name: &str) -> Result<(), FarAllocError> {
    control(name, (null_mut(), null_mut()), (null_mut(), 0))
}

/// Makes what is made from `value`, and returns its number.
pub(crate) fn make<T>(name: &str, value: &mut T) -> Result<u32, FarAllocError> {
    let (mut number, mut bytes) = (0_u32, size_of::<u32>());
    let new = (from_mut(value).cast(), size_of::<T>());
    control(name, (from_mut(&mut number).cast(), &raw mut bytes), new)?;
    Ok(number)
}
