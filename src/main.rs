//! The engine's binary. Bare it is `no_std` and has no allocator; with `host` an ordinary program
//! around the same door, so that the suites can drive it.
#![cfg_attr(not(feature = "host"), no_std, no_main)]

#[cfg(feature = "host")]
fn main() -> std::process::ExitCode {
    use std::os::unix::ffi::OsStringExt;
    let arguments: Vec<&'static [u8]> =
        std::env::args_os().skip(1).map(|text| &*text.into_vec().leak()).collect();
    ganglion::cli::enter(&arguments, false).into()
}

#[cfg(not(feature = "host"))]
mod bare {
    #![allow(unsafe_code)] // the entry point and the symbols a no_std binary owes the linker

    use core::ffi::c_char;
    use ganglion::cli::{ArgumentError, enter};
    use ganglion::sys::{Stderr, exit, start};

    #[unsafe(no_mangle)]
    extern "C" fn main(argc: i32, argv: *const *const c_char) -> i32 {
        // SAFETY: the C runtime passes argc and argv of the process, which live as long as it.
        let Some(arguments) = (unsafe { start::arguments(argc, argv) }) else {
            Stderr::line(format_args!("ganglion: {}", ArgumentError::TooMany));
            start::quit(exit::USAGE);
        };
        start::quit(enter(&arguments, true))
    }

    #[panic_handler]
    fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
        Stderr::line(format_args!("ganglion: broken invariant, please report it: {info}"));
        start::quit(exit::SOFTWARE)
    }

    /// The precompiled `core` of the dev profile names the unwinder's personality; nothing unwinds.
    #[unsafe(no_mangle)]
    extern "C" fn rust_eh_personality() {}
}
