//! The team: the main thread and its workers run one job together and meet at its end.
//!
//! Called by cluster and model for every matrix. A job is a closure that each member runs once;
//! the borrow ends with the call, because the call returns when the last member has finished.
#![allow(unsafe_code)] // lifetimes of a job, disjoint parts of a slice

use super::thread::WaitWord;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

type Job = dyn Fn(usize) + Sync;

/// A fixed set of compute threads.
pub struct Team {
    threads: usize,
    epoch: WaitWord,
    pending: WaitWord,
    led: AtomicBool,
    joined: AtomicUsize,
    job: UnsafeCell<Option<&'static Job>>,
}

/// The one handle that gives a team its jobs.
pub struct Lead<'a>(&'a Team);

/// Numbers that members take one by one: each those of its own range in order, so that what it
/// reads follows on, then what is left of the others'.
pub struct Claims {
    taken: [AtomicUsize; MEMBERS_MAX],
    members: usize,
    share: usize,
    total: usize,
}

/// Most members of a team.
const MEMBERS_MAX: usize = crate::plan::THREADS_MAX as usize;

impl Claims {
    /// The numbers 0 to `total`, for `members`.
    pub fn new(total: usize, members: usize) -> Claims {
        let taken = [const { AtomicUsize::new(0) }; MEMBERS_MAX];
        assert!(members <= taken.len());
        Claims { taken, members, share: total.div_ceil(members), total }
    }

    /// The next number for `member`, or `None` when all are taken.
    pub fn take(&self, member: usize) -> Option<usize> {
        (0..self.members).find_map(|step| {
            let owner = (member + step) % self.members;
            let end = ((owner + 1) * self.share).min(self.total);
            let number = owner * self.share + self.taken[owner].fetch_add(1, Ordering::Relaxed);
            (number < end).then_some(number)
        })
    }
}

/// Epoch that tells workers to leave.
const LEAVE: u32 = u32::MAX;

// SAFETY: `job` is written by the one running thread while every worker waits for the next epoch,
// and read by workers only between that epoch and their count-down.
unsafe impl Sync for Team {}

impl Team {
    /// A team of `threads`, the main thread included. Each other member runs [`Team::serve`].
    pub const fn new(threads: usize) -> Team {
        assert!(threads > 0);
        Team {
            threads,
            epoch: WaitWord::new(0),
            pending: WaitWord::new(0),
            led: AtomicBool::new(false),
            joined: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
        }
    }

    /// The lead of the team; there is one.
    pub fn lead(&self) -> Lead<'_> {
        assert!(!self.led.swap(true, Ordering::SeqCst), "a team has one lead");
        Lead(self)
    }

    /// Body of a worker, one for each member beside the main thread: takes a number, tells it to
    /// `started`, and runs jobs until [`Team::dismiss`].
    pub fn serve(&self, started: impl FnOnce(usize)) {
        let member = self.joined.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(member < self.threads, "a team has one thread a member");
        started(member);
        let mut seen = 0;
        loop {
            seen = self.epoch.wait_while(seen);
            if seen == LEAVE {
                return;
            }
            // SAFETY: the epoch was raised after the job was written, and `run` waits for our
            // count-down before it lets the job go.
            let job = unsafe { (*self.job.get()).expect("a job comes with its epoch") };
            job(member);
            self.pending.count_down();
        }
    }

    /// Lets the workers leave.
    pub fn dismiss(&self) {
        self.epoch.store(LEAVE);
    }

    /// Runs `job` once on every member, with its number. Only the lead calls this.
    fn run(&self, job: &(dyn Fn(usize) + Sync)) {
        if self.threads == 1 {
            return job(0);
        }
        // SAFETY: the workers are all waiting for the next epoch. The job's true lifetime is this
        // call, and it does not return before every worker has counted down.
        unsafe {
            let job = core::mem::transmute::<&(dyn Fn(usize) + Sync), &'static Job>(job);
            *self.job.get() = Some(job);
        }
        self.pending.store(self.threads as u32 - 1);
        let epoch = self.epoch.load();
        self.epoch.store(if epoch + 1 == LEAVE { 1 } else { epoch + 1 });
        let guard = PanicOnUnwind;
        job(0);
        core::mem::forget(guard);
        loop {
            match self.pending.load() {
                0 => break,
                left => self.pending.wait_while(left),
            };
        }
    }
}

/// Unwinding past a running job would free what the other members still use: a panic while
/// panicking ends the process.
struct PanicOnUnwind;

impl Drop for PanicOnUnwind {
    fn drop(&mut self) {
        panic!("the lead panicked while its team was running");
    }
}

impl Lead<'_> {
    /// Members, the main thread included.
    pub fn threads(&self) -> usize {
        self.0.threads
    }

    /// Runs `job` once on every member.
    pub fn all(&mut self, job: &(dyn Fn() + Sync)) {
        self.0.run(&|_| job());
    }

    /// Gives each member its own state.
    pub fn each<T: Send>(&mut self, states: &mut [T], job: &(dyn Fn(usize, &mut T) + Sync)) {
        assert!(states.len() >= self.0.threads, "one state a member");
        let parts = Parts::new(states);
        self.0.run(&|member| {
            // SAFETY: each member runs once and takes the state of its own number.
            job(member, unsafe { &mut parts.range(member, 1)[0] });
        });
    }

    /// Cuts `out` into chunks that members take by [`Claims`]: `job(first index, chunk)`.
    pub fn chunks<T: Send>(
        &mut self,
        out: &mut [T],
        chunk: usize,
        job: &(dyn Fn(usize, &mut [T]) + Sync),
    ) {
        let length = out.len();
        let claims = Claims::new(length.div_ceil(chunk), self.0.threads);
        let parts = Parts::new(out);
        self.0.run(&|member| {
            while let Some(claim) = claims.take(member) {
                let first = claim * chunk;
                // SAFETY: each claim is handed out once, so no two chunks overlap.
                job(first, unsafe { parts.range(first, chunk.min(length - first)) });
            }
        });
    }

    /// Cuts each of `parts` into `lines` equal lines, which members take one by one:
    /// `job(line, that line of each part)`.
    pub fn lines<const N: usize>(
        &mut self,
        parts: [&mut [u8]; N],
        lines: usize,
        job: &(dyn Fn(usize, [&mut [u8]; N]) + Sync),
    ) {
        let next = AtomicUsize::new(0);
        let parts = parts.map(|part| {
            assert!(part.len().is_multiple_of(lines), "lines are equal");
            Parts::new(part)
        });
        self.0.run(&|_| {
            loop {
                let line = next.fetch_add(1, Ordering::Relaxed);
                if line >= lines {
                    return;
                }
                let line_of = |index: usize| {
                    let bytes = parts[index].length / lines;
                    // SAFETY: `next` hands out each line once, so no two overlap.
                    unsafe { parts[index].range(line * bytes, bytes) }
                };
                job(line, core::array::from_fn(line_of));
            }
        });
    }
}

/// A slice whose disjoint parts go to different threads.
struct Parts<T> {
    base: *mut T,
    length: usize,
}

// SAFETY: parts are handed out disjointly (the callers' promise), each to one thread at a time.
unsafe impl<T: Send> Sync for Parts<T> {}

impl<T> Parts<T> {
    fn new(slice: &mut [T]) -> Parts<T> {
        Parts { base: slice.as_mut_ptr(), length: slice.len() }
    }

    /// # Safety
    ///
    /// No two ranges that are alive at the same time overlap.
    #[allow(clippy::mut_from_ref)] // ranges are disjoint
    unsafe fn range(&self, first: usize, count: usize) -> &mut [T] {
        assert!(first + count <= self.length);
        // SAFETY: in bounds, and disjoint from every other live range (the caller's promise).
        unsafe { core::slice::from_raw_parts_mut(self.base.add(first), count) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::thread::scope;
    use super::*;

    #[repr(align(4096))]
    struct Stack([u8; 65536]);

    #[test]
    fn claims_are_taken_once_and_in_order() {
        for (total, members) in [(0, 1), (1, 3), (7, 2), (10, 4), (64, 16)] {
            let claims = Claims::new(total, members);
            let mut seen = vec![0; total];
            let own: Vec<usize> = std::iter::from_fn(|| claims.take(members - 1)).collect();
            own.iter().for_each(|&number| seen[number] += 1);
            assert!((0..members).all(|member| claims.take(member).is_none()));
            assert!(seen.iter().all(|&times| times == 1), "{total} for {members}: {own:?}");
        }
        let claims = Claims::new(10, 2);
        let taken = [1, 1, 0, 1].map(|member| claims.take(member));
        assert_eq!(taken, [Some(5), Some(6), Some(0), Some(7)]);
    }

    #[test]
    fn chunks_cover_everything_once_on_any_number_of_threads() {
        for threads in 1..4 {
            let mut stacks = [const { Stack([0; 65536]) }; 3];
            let team = Team::new(threads);
            let serve: Vec<_> = (1..threads).map(|_| || team.serve(|_| {})).collect();
            let mut lead = team.lead();
            scope(|scope| {
                for (stack, body) in stacks.iter_mut().zip(&serve) {
                    scope.spawn(&mut stack.0, body).unwrap();
                }
                for round in 0..2000usize {
                    let mut out = vec![0usize; 37];
                    lead.chunks(&mut out, 5, &|first, chunk| {
                        for (i, value) in chunk.iter_mut().enumerate() {
                            *value += first + i + round;
                        }
                    });
                    assert!(out.iter().enumerate().all(|(i, &value)| value == i + round));
                    let mut states = vec![0; threads];
                    lead.each(&mut states, &|member, state| *state += member + 1);
                    assert!(states.iter().enumerate().all(|(i, &state)| state == i + 1));
                }
                team.dismiss();
            });
        }
    }
}
