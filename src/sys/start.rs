//! What the process was started with: arguments and environment, as bytes.
#![allow(unsafe_code)] // argv, getenv, getauxval

use core::ffi::{CStr, c_char};

/// Most arguments that are looked at.
pub const ARGUMENTS_MAX: usize = 64;

/// The arguments behind the program's name.
pub type Arguments = heapless::Vec<&'static [u8], ARGUMENTS_MAX>;

/// Collects the arguments of `main`; `None` when there are more than [`ARGUMENTS_MAX`].
///
/// # Safety
///
/// `argv` holds `argc` pointers to zero-terminated strings that live as long as the process, as the
/// C runtime passes them.
pub unsafe fn arguments(argc: i32, argv: *const *const c_char) -> Option<Arguments> {
    let mut all = Arguments::new();
    for index in 1..argc.max(1) as usize {
        // SAFETY: index < argc, and every string is terminated (the caller's promise).
        let text = unsafe { CStr::from_ptr(*argv.add(index)) };
        all.push(text.to_bytes()).ok()?;
    }
    Some(all)
}

/// An environment variable.
pub fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: the name is terminated; nothing in this process changes the environment.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes())
    }
}

/// The processor's features as the kernel reports them (AT_HWCAP, AT_HWCAP2): which bit means what
/// depends on the architecture.
pub fn hardware_features() -> [u64; 2] {
    // SAFETY: getauxval reads what the kernel gave the process at its start.
    unsafe { [libc::getauxval(libc::AT_HWCAP), libc::getauxval(libc::AT_HWCAP2)] }
}

/// Ends the process at once, without running anything at exit.
pub fn quit(code: u8) -> ! {
    // SAFETY: _exit does not return.
    unsafe { libc::_exit(i32::from(code)) }
}

/// Touches the pages of this thread's stack that a token loop may reach, so that it never faults.
#[inline(never)]
pub fn touch_stack() {
    const BYTES: usize = 128 << 10;
    let mut pages = [0u8; BYTES];
    for page in pages.chunks_mut(4096) {
        // SAFETY: a byte of our own array; volatile, so that the write is not left out.
        unsafe { core::ptr::write_volatile(&mut page[0], 1) };
    }
}
