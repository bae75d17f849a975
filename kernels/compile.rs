//! Compiles the C kernels of the target's architecture. Included by build.rs.
//!
//! Contraction of a multiply and an add into one rounding would change results, so it is switched
//! off for every file; so is everything that would let the compiler call into libc.

use std::env;

const FLAGS: [&str; 6] = [
    "-std=c11",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-builtin",
    "-fno-stack-protector",
    "-Wconversion",
];

const AVX2: [&str; 4] = ["-mavx2", "-mf16c", "-msse4.2", "-mpclmul"];
const AVX512: [&str; 6] =
    ["-mavx2", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"];
/// With GANGLION_SANITIZE set, for `.ci/sanitize`.
const SANITIZE: [&str; 3] =
    ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];
/// Nearly all registers hold sums. Scheduling before they are given out would spill them; after it,
/// order and choice of registers matter to cores that run in order.
const ARM: [&str; 3] = ["-mtune=cortex-a55", "-fno-schedule-insns", "-frename-registers"];
/// Its loop leaves registers free.
const I8MM: [&str; 1] = ["-fschedule-insns"];

/// Builds the kernels of every instruction set of the target. Other architectures have only the
/// twins.
pub fn compile() {
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-env-changed=GANGLION_SANITIZE");
    if sanitized() {
        // By name: rustc keeps the C compiler from adding libraries of its own.
        ["-lasan", "-lubsan"].iter().for_each(|lib| println!("cargo::rustc-link-arg={lib}"));
    }
    match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => {
            build("avx2", "x86", &["matvec", "down", "batch", "attend", "vector"], &AVX2);
            let avx512 = ["matvec", "gemm", "down", "batch", "attend", "vector"];
            build("avx512", "x86", &avx512, &AVX512);
        }
        Ok("aarch64") => {
            let march = |arch| [&[arch], &ARM[..]].concat();
            let neon = march("-march=armv8-a+crc");
            build("neon", "arm", &["matvec", "gemm", "down", "batch", "attend", "vector"], &neon);
            build("dotprod", "arm", &["matvec", "gemm"], &march("-march=armv8.2-a+dotprod"));
            let i8mm = march("-march=armv8.2-a+dotprod+i8mm");
            build("i8mm", "arm", &["gemm"], &[&i8mm[..], &I8MM].concat());
        }
        _ => {}
    }
}

/// Builds `libganglion_ISA.a` of the files `FOLDER/ISA_NAME.c`, and links it.
fn build(isa: &str, folder: &str, names: &[&str], flags: &[&str]) {
    let mut kernels = cc::Build::new();
    kernels
        .files(names.iter().map(|name| format!("kernels/{folder}/{isa}_{name}.c")))
        .include("kernels")
        .opt_level(3)
        .flags(FLAGS)
        .flag_if_supported("-fno-tree-loop-distribute-patterns")
        .flags(flags)
        .warnings(true)
        .extra_warnings(true);
    if sanitized() {
        // The ordinary build warns; checks that the compiler adds would make it warn of those.
        kernels.flags(SANITIZE).opt_level(1).debug(true).cargo_warnings(false);
    }
    kernels.compile(&format!("ganglion_{isa}"));
}

fn sanitized() -> bool {
    env::var_os("GANGLION_SANITIZE").is_some()
}
