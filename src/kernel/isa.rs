//! Which instruction set a kernel table needs, and whether this machine has it.
//!
//! Asked once at boot. The choice never changes a result: every table gives the same bits.

use crate::sys::start;

/// An instruction set with a kernel table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust, on every machine: the reference.
    Twin,
    /// x86-64 with AVX2, F16C, SSE4.2 and PCLMULQDQ.
    Avx2,
    /// x86-64 with, beside AVX2, AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
    /// aarch64 with ASIMD and CRC32.
    Neon,
    /// aarch64 with, beside these, SDOT.
    Dotprod,
    /// aarch64 with, beside these, SMMLA.
    I8mm,
}

impl Isa {
    /// Every instruction set, slowest first.
    pub const ALL: [Isa; 6] =
        [Isa::Twin, Isa::Avx2, Isa::Avx512, Isa::Neon, Isa::Dotprod, Isa::I8mm];

    /// Name in options and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Twin => "twin",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Neon => "neon",
            Isa::Dotprod => "dotprod",
            Isa::I8mm => "i8mm",
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
            Isa::Avx2 => x86_available(false),
            Isa::Avx512 => x86_available(true),
            Isa::Neon => arm_available([ASIMD | CRC32, 0]),
            Isa::Dotprod => arm_available([ASIMD | CRC32 | ASIMDDP, 0]),
            Isa::I8mm => arm_available([ASIMD | CRC32 | ASIMDDP, I8MM]),
        }
    }

    /// The fastest one available.
    pub fn best() -> Isa {
        Isa::ALL.into_iter().rev().find(|isa| isa.available()).unwrap_or(Isa::Twin)
    }
}

// Bits of AT_HWCAP on aarch64.
const ASIMD: u64 = 1 << 1;
const CRC32: u64 = 1 << 7;
const ASIMDDP: u64 = 1 << 20;
// A bit of AT_HWCAP2.
const I8MM: u64 = 1 << 13;

/// `needed`: bits of AT_HWCAP, then of AT_HWCAP2.
fn arm_available(needed: [u64; 2]) -> bool {
    let has = start::hardware_features();
    cfg!(target_arch = "aarch64") && needed.iter().zip(has).all(|(n, has)| n & has == *n)
}

#[cfg(not(target_arch = "x86_64"))]
fn x86_available(_wide: bool) -> bool {
    false
}

/// AVX2 and its companions, or, if `wide`, AVX-512 too.
#[cfg(target_arch = "x86_64")]
fn x86_available(wide: bool) -> bool {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    const PCLMULQDQ: u32 = 1 << 1;
    const SSE42: u32 = 1 << 20;
    const OSXSAVE: u32 = 1 << 27;
    const AVX: u32 = 1 << 28;
    const F16C: u32 = 1 << 29;
    const AVX2: u32 = 1 << 5;
    /// F, DQ, BW, VL.
    const AVX512: u32 = 1 << 16 | 1 << 17 | 1 << 30 | 1 << 31;
    const VNNI: u32 = 1 << 11;
    const XMM_AND_YMM: u64 = 0b110;
    const ZMM: u64 = 0b1110_0000;
    let needed = PCLMULQDQ | SSE42 | OSXSAVE | AVX | F16C;
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & needed != needed {
        return false;
    }
    let has = __cpuid_count(7, 0);
    let (features, state) =
        if wide { (AVX2 | AVX512, XMM_AND_YMM | ZMM) } else { (AVX2, XMM_AND_YMM) };
    // SAFETY: the OSXSAVE bit above says that the instruction exists and that the system has
    // switched it on.
    let saved = unsafe { enabled_state() };
    saved & state == state && has.ebx & features == features && (!wide || has.ecx & VNNI != 0)
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
