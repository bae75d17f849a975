//! Which instruction set a kernel table needs, and whether this machine has it.
//!
//! Asked once at boot. The choice never changes a result: every table gives the same bits.

/// An instruction set with a kernel table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust, on every machine: the reference.
    Twin,
    /// x86-64 with AVX2, F16C and SSE4.2.
    Avx2,
}

impl Isa {
    /// Every instruction set, slowest first.
    pub const ALL: [Isa; 2] = [Isa::Twin, Isa::Avx2];

    /// Name in options and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Twin => "twin",
            Isa::Avx2 => "avx2",
        }
    }

    /// The instruction set of a name, or `None`.
    pub fn parse(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name() == name)
    }

    /// Whether this processor and its operating system can run it.
    pub fn available(self) -> bool {
        match self {
            Isa::Twin => true,
            Isa::Avx2 => avx2_available(),
        }
    }

    /// The fastest one available.
    pub fn best() -> Isa {
        if Isa::Avx2.available() { Isa::Avx2 } else { Isa::Twin }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn avx2_available() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
fn avx2_available() -> bool {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    const SSE42: u32 = 1 << 20;
    const OSXSAVE: u32 = 1 << 27;
    const AVX: u32 = 1 << 28;
    const F16C: u32 = 1 << 29;
    const AVX2: u32 = 1 << 5;
    const XMM_AND_YMM: u64 = 0b110;
    let needed = SSE42 | OSXSAVE | AVX | F16C;
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & needed != needed {
        return false;
    }
    // SAFETY: the OSXSAVE bit above says that the instruction exists and that the system has
    // switched it on.
    let saved = unsafe { enabled_state() };
    saved & XMM_AND_YMM == XMM_AND_YMM && __cpuid_count(7, 0).ebx & AVX2 != 0
}

/// The register sets that the operating system saves at a task switch.
///
/// # Safety
///
/// CPUID must report OSXSAVE.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "xsave")]
unsafe fn enabled_state() -> u64 {
    // SAFETY: register 0 exists wherever the instruction does.
    unsafe { core::arch::x86_64::_xgetbv(0) }
}
