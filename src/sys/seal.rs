//! The seal's proof: a filter under which any call that could get memory kills the process.
#![allow(unsafe_code)] // prctl, seccomp

use super::errno::SysError;

/// Calls that map, grow, move or protect memory.
const FORBIDDEN: [libc::c_long; 4] =
    [libc::SYS_mmap, libc::SYS_brk, libc::SYS_mremap, libc::SYS_mprotect];

/// From here on, any thread that maps, grows, moves or protects memory kills the process.
pub fn forbid_memory_calls() -> Result<(), SysError> {
    let statement = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let (load, equal, answer) = (
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::BPF_RET | libc::BPF_K,
    );
    let forbid = |call: libc::c_long, to_kill| statement(equal, to_kill, 0, call as u32);
    let mut program = [
        statement(load, 0, 0, 0), // the call's number
        forbid(FORBIDDEN[0], 4),
        forbid(FORBIDDEN[1], 3),
        forbid(FORBIDDEN[2], 2),
        forbid(FORBIDDEN[3], 1),
        statement(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
        statement(answer, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the filter and its program outlive both calls; neither keeps a pointer.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(SysError::last("prctl"));
        }
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        let every_thread = libc::SECCOMP_FILTER_FLAG_TSYNC;
        if libc::syscall(libc::SYS_seccomp, mode, every_thread, &filter) != 0 {
            return Err(SysError::last("seccomp"));
        }
    }
    Ok(())
}
