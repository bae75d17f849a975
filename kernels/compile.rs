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

/// Builds `libganglion_kernels.a` and links it. Other architectures have only the twins.
pub fn compile() {
    println!("cargo::rerun-if-changed=kernels");
    if env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64") {
        cc::Build::new()
            .files([
                "kernels/x86/matvec.c",
                "kernels/x86/down.c",
                "kernels/x86/attend.c",
                "kernels/x86/vector.c",
            ])
            .include("kernels")
            .opt_level(3)
            .flags(FLAGS)
            .flag_if_supported("-fno-tree-loop-distribute-patterns")
            .flags(["-mavx2", "-mf16c", "-msse4.2"])
            .warnings(true)
            .extra_warnings(true)
            .compile("ganglion_kernels");
    }
}
