//! Threads: a fixed set, on stacks given by the caller, all joined before the scope ends.
#![allow(unsafe_code)] // pthread, futex

use super::errno::SysError;
use core::cell::{Cell, UnsafeCell};
use core::ffi::c_void;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};

/// Most threads of a scope.
pub const THREADS_MAX: usize = 64;
/// The lowest page of a stack: whatever overruns the stack writes into it first.
const CANARY: [u8; 4096] = [0xca; 4096];

type Body<'env> = &'env (dyn Fn() + Sync);

/// Threads that borrow from outside; see [`scope`].
pub struct Scope<'env> {
    bodies: [UnsafeCell<MaybeUninit<Body<'env>>>; THREADS_MAX],
    handles: UnsafeCell<[MaybeUninit<libc::pthread_t>; THREADS_MAX]>,
    stacks: UnsafeCell<[MaybeUninit<*const u8>; THREADS_MAX]>,
    started: Cell<usize>,
    lives: PhantomData<Cell<&'env ()>>,
}

/// Runs `body` with a scope, then joins every thread that was started in it. Their bodies must
/// return by then: tell them to stop before `body` ends.
pub fn scope<'env, R>(body: impl FnOnce(&Scope<'env>) -> R) -> R {
    let scope = Scope {
        bodies: [const { UnsafeCell::new(MaybeUninit::uninit()) }; THREADS_MAX],
        handles: UnsafeCell::new([MaybeUninit::uninit(); THREADS_MAX]),
        stacks: UnsafeCell::new([MaybeUninit::uninit(); THREADS_MAX]),
        started: Cell::new(0),
        lives: PhantomData,
    };
    let joined = JoinOnDrop(&scope);
    let result = body(&scope);
    drop(joined);
    result
}

impl<'env> Scope<'env> {
    /// Starts a thread on `stack` (at least 32 KiB). The lowest page of the stack is a canary,
    /// looked at when the thread is joined.
    pub fn spawn(&self, stack: &'env mut [u8], body: Body<'env>) -> Result<(), SysError> {
        let index = self.started.get();
        assert!(index < THREADS_MAX, "the plan bounds the threads");
        let (canary, usable) = stack.split_at_mut(CANARY.len());
        canary.copy_from_slice(&CANARY);
        // SAFETY: cell `index` was never used: only this thread spawns, each index once. The cell
        // and the stack stay in place until the scope has joined the thread. `attributes` is
        // initialised by pthread_attr_init before use.
        let result = unsafe {
            let cell = self.bodies[index].get();
            (*cell).write(body);
            let mut attributes: MaybeUninit<libc::pthread_attr_t> = MaybeUninit::uninit();
            libc::pthread_attr_init(attributes.as_mut_ptr());
            let (low, bytes) = (usable.as_mut_ptr().cast(), usable.len());
            let mut result = libc::pthread_attr_setstack(attributes.as_mut_ptr(), low, bytes);
            if result == 0 {
                let handle = (*self.handles.get())[index].as_mut_ptr();
                result = libc::pthread_create(handle, attributes.as_ptr(), enter, cell.cast());
                (*self.stacks.get())[index].write(canary.as_ptr());
            }
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            result
        };
        if result != 0 {
            return Err(SysError { call: "pthread_create", errno: result });
        }
        self.started.set(index + 1);
        Ok(())
    }

    fn join(&self) {
        for index in 0..self.started.get() {
            // SAFETY: handle and canary of a started thread are initialised; each is joined once.
            let canary = unsafe {
                let handle = (*self.handles.get())[index].assume_init();
                libc::pthread_join(handle, core::ptr::null_mut());
                let canary = (*self.stacks.get())[index].assume_init();
                core::slice::from_raw_parts(canary, CANARY.len())
            };
            assert!(canary == CANARY, "thread {index} overran its stack");
        }
    }
}

struct JoinOnDrop<'a, 'env>(&'a Scope<'env>);

impl Drop for JoinOnDrop<'_, '_> {
    fn drop(&mut self) {
        self.0.join();
    }
}

extern "C" fn enter(cell: *mut c_void) -> *mut c_void {
    // SAFETY: `cell` is the initialised body of this thread; the scope outlives it.
    let body = unsafe { (*cell.cast::<MaybeUninit<Body<'_>>>()).assume_init() };
    body();
    core::ptr::null_mut()
}

/// Wishes this thread onto the `index`-th core it may use; true if the kernel agreed.
pub fn pin_to_core(index: usize) -> bool {
    // SAFETY: all-zero bytes are an empty cpu_set_t; the calls read and write our own sets.
    unsafe {
        let mut allowed: libc::cpu_set_t = core::mem::zeroed();
        let bytes = size_of::<libc::cpu_set_t>();
        if libc::sched_getaffinity(0, bytes, &mut allowed) != 0 {
            return false;
        }
        let mut cores = (0..libc::CPU_SETSIZE as usize).filter(|&c| libc::CPU_ISSET(c, &allowed));
        let Some(core) = cores.nth(index) else { return false };
        let mut one: libc::cpu_set_t = core::mem::zeroed();
        libc::CPU_SET(core, &mut one);
        libc::sched_setaffinity(0, bytes, &one) == 0
    }
}

/// A word that threads can sleep on. Spins a little, then sleeps in the kernel.
#[derive(bytemuck::Zeroable)]
#[repr(C)]
pub struct WaitWord {
    value: AtomicU32,
    sleepers: AtomicU32,
}

const SPINS: u32 = 2000;

impl WaitWord {
    /// A word holding `value`.
    pub const fn new(value: u32) -> WaitWord {
        WaitWord { value: AtomicU32::new(value), sleepers: AtomicU32::new(0) }
    }

    /// Its value; what was written before it was set is seen.
    pub fn load(&self) -> u32 {
        self.value.load(Ordering::SeqCst)
    }

    /// Sets the value and wakes every sleeper.
    pub fn store(&self, value: u32) {
        self.value.store(value, Ordering::SeqCst);
        self.wake();
    }

    /// Adds to the value, wakes every sleeper, returns the old value.
    pub fn add(&self, by: u32) -> u32 {
        let before = self.value.fetch_add(by, Ordering::SeqCst);
        self.wake();
        before
    }

    /// Takes one off the value, wakes every sleeper when it reaches zero, returns the old value.
    pub fn count_down(&self) -> u32 {
        let before = self.value.fetch_sub(1, Ordering::SeqCst);
        if before == 1 {
            self.wake();
        }
        before
    }

    /// Waits until the value is no longer `old`; returns the new one.
    pub fn wait_while(&self, old: u32) -> u32 {
        let value = self.load();
        if value != old { value } else { self.wait(old) }
    }

    /// Spins, then sleeps. A function of its own, so that instructions of waiting, which no two
    /// runs share, can be told from those of work (`.ci/callgrind`).
    #[inline(never)]
    fn wait(&self, old: u32) -> u32 {
        for _ in 0..SPINS {
            let value = self.load();
            if value != old {
                return value;
            }
            core::hint::spin_loop();
        }
        loop {
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            futex(&self.value, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, old);
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
            let value = self.load();
            if value != old {
                return value;
            }
        }
    }

    /// A sleeper counts itself before the kernel compares the word, and the word is stored before
    /// the count is read, so one of the two sees the other.
    fn wake(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let everyone = i32::MAX as u32;
            futex(&self.value, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, everyone);
        }
    }
}

fn futex(word: &AtomicU32, operation: i32, value: u32) {
    let forever = core::ptr::null::<libc::timespec>();
    // SAFETY: the word is valid for the call; the kernel only compares or wakes.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, forever) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(4096))]
    struct Stack([u8; 65536]);

    #[test]
    fn threads_run_wait_and_are_joined() {
        let mut stacks = [const { Stack([0; 65536]) }; 2];
        let word = WaitWord::new(0);
        let seen = AtomicU32::new(0);
        let body = || {
            seen.fetch_add(word.wait_while(0), Ordering::SeqCst);
        };
        let [a, b] = &mut stacks;
        scope(|scope| {
            scope.spawn(&mut a.0, &body).unwrap();
            scope.spawn(&mut b.0, &body).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20)); // let both go to sleep
            word.store(7);
        });
        assert_eq!(seen.load(Ordering::SeqCst), 14);
    }
}
