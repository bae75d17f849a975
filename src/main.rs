//! The engine binary: boot order, panic handler, exit codes.
#![cfg_attr(not(feature = "host"), no_std, no_main)]

#[cfg(feature = "host")]
fn main() {}

#[cfg(not(feature = "host"))]
mod bare {
    use libc as _;
    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo) -> ! {
        // placeholder until sys lands
        loop {}
    }

    #[allow(unsafe_code)]
    #[unsafe(no_mangle)]
    extern "C" fn main(_argc: i32, _argv: *const *const u8) -> i32 {
        0
    }

    /// The precompiled `core` of the dev profile names the unwinder's personality; nothing unwinds.
    #[allow(unsafe_code)]
    #[unsafe(no_mangle)]
    extern "C" fn rust_eh_personality() {}
}
