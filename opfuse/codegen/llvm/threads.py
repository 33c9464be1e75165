"""The thread pool, as LLVM IR text: the one piece of native code that a process loads once, with the step driver.

    text = runtime_text("x86_64")   # compile it once; its functions are shared by every model of the process
    opfuse_drive(context, table, steps)   runs a table of steps on context's threads and returns when all is done
    opfuse_stop()                         ends the workers and waits for them; later calls run on one thread

The caller of a run is thread 0; it posts the context into the slots of the workers that it wants and starts at once. A
worker that wakes late joins where the others are; one that has not woken when the work is done is recalled. So nobody
waits for a sleeping or descheduled thread that holds no work. Waiters spin, then yield, then sleep on a futex.

One call at a time has the pool; a second caller meanwhile runs its model on its own thread alone. A child of `fork`
finds that its process id is another and begins with an empty pool.
"""

from __future__ import annotations

from opfuse.codegen.llvm.context import ACTIVE
from opfuse.codegen.llvm.driver import driver_text

MAX_THREADS = 256
# Spins before a waiter yields, and yields before it sleeps. A pause is 10-60 ns and a yield about 0.4 us where nobody
# else wants the core, so yielding early costs nothing and gives the core to whoever holds a chunk on a busy machine;
# waking a sleeper costs 240-380 us on a virtual machine, so waiters sleep only after a millisecond or more.
IDLE_SPINS, WAIT_SPINS, YIELDS = 2000, 200, 3000
_FUTEX = {"x86_64": 202, "aarch64": 98}  # number of the system call on Linux
_PAUSE = {"x86_64": "llvm.x86.sse2.pause", "aarch64": "llvm.aarch64.hint"}
SYMBOLS = ("pthread_create", "pthread_join", "syscall", "sched_yield", "getpid", "usleep", "clock_gettime", "memset")


def runtime_text(machine: str, linux: bool = True) -> str:
    """The module for a machine ("x86_64", "aarch64"; any other one yields where these pause).

    Without Linux there is no futex: sleepers nap for 50 us and look again.
    """
    texts = (_declarations(machine), _pause(machine), _clock(machine), _wait(machine, linux))
    parts = (_GLOBALS, *texts, _POOL, driver_text(WAIT_SPINS), _STOP)
    return "\n".join(part.strip("\n") for part in parts) + "\n"


_GLOBALS = f"""
; the pool: lock, process id, number of workers, closed
@lock = internal global i32 0, align 64
@pid = internal global i32 0, align 64
@size = internal global i32 0, align 4
@closed = internal global i32 0, align 4
; a slot for each worker, 128 bytes: state (0 idle, 1 posted, 2 running, 3 stop), sleepers, context
@slots = internal global [{MAX_THREADS} x [16 x i64]] zeroinitializer, align 128
@handles = internal global [{MAX_THREADS} x i64] zeroinitializer, align 64
"""


def _declarations(machine: str) -> str:
    declared = ["declare i32 @pthread_create(ptr, ptr, ptr, ptr)", "declare i32 @pthread_join(i64, ptr)",
                "declare i64 @syscall(i64, ...)", "declare i32 @sched_yield()", "declare i32 @getpid()",
                "declare i32 @usleep(i32)", "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
                "declare i64 @llvm.readcyclecounter()", "declare i32 @clock_gettime(i32, ptr)"]  # fmt: skip
    if machine in _PAUSE:
        declared.append(f"declare void @{_PAUSE[machine]}({'i32' if machine == 'aarch64' else ''})")
    return "\n".join(declared)


def _pause(machine: str) -> str:
    if machine not in _PAUSE:
        return "define internal void @pause() { %r = call i32 @sched_yield()\n ret void }"
    argument = "i32 1" if machine == "aarch64" else ""
    return f"define internal void @pause() {{ call void @{_PAUSE[machine]}({argument})\n ret void }}"


def _clock(machine: str) -> str:
    """Ticks: the time-stamp counter of an x86, elsewhere nanoseconds (other counters are not open to programs)."""
    if machine == "x86_64":
        return "define i64 @opfuse_clock() { %t = call i64 @llvm.readcyclecounter()\n ret i64 %t }"
    return """
define i64 @opfuse_clock() {
  %at = alloca [2 x i64]
  %rc = call i32 @clock_gettime(i32 1, ptr %at)
  %seconds = load i64, ptr %at
  %rest = getelementptr i64, ptr %at, i64 1
  %nanoseconds = load i64, ptr %rest
  %whole = mul i64 %seconds, 1000000000
  %t = add i64 %whole, %nanoseconds
  ret i64 %t
}
"""


def _wait(machine: str, linux: bool) -> str:
    """wait(word, old, sleepers, spins) returns when *word is not old; wake(word, sleepers) comes after its change."""
    number = _FUTEX.get(machine) if linux else None
    if number is None:
        sleep, wake = "%r = call i32 @usleep(i32 50)", ""
    else:
        call = f"call i64 (i64, ...) @syscall(i64 {number}, ptr %word, "
        sleep = f"%r = {call}i64 128, i32 %old, ptr null, ptr null, i32 0)"
        wake = f"%r = {call}i64 129, i32 2147483647, ptr null, ptr null, i32 0)"
    return f"""
define internal void @wait(ptr %word, i32 %old, ptr %sleepers, i32 %spins) {{
entry:
  %tired = add i32 %spins, {YIELDS}
  br label %look
look:
  %n = phi i32 [0, %entry], [%n1, %rested]
  %v = load atomic i32, ptr %word acquire, align 4
  %same = icmp eq i32 %v, %old
  br i1 %same, label %rest, label %done
rest:
  %n1 = add i32 %n, 1
  %spin = icmp ult i32 %n, %spins
  br i1 %spin, label %spinning, label %slower
spinning:
  call void @pause()
  br label %rested
slower:
  %yield = icmp ult i32 %n, %tired
  br i1 %yield, label %yielding, label %sleeping
yielding:
  %y = call i32 @sched_yield()
  br label %rested
sleeping:
  %up = atomicrmw add ptr %sleepers, i32 1 seq_cst
  {sleep}
  %down = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  br label %rested
rested:
  br label %look
done:
  ret void
}}
define internal void @wake(ptr %word, ptr %sleepers) {{
entry:
  %n = load atomic i32, ptr %sleepers seq_cst, align 4
  %any = icmp ne i32 %n, 0
  br i1 %any, label %call, label %done
call:
  {wake}
  br label %done
done:
  ret void
}}
"""


_POOL = f"""
define internal ptr @slot(i64 %k) {{
  %at = mul i64 %k, 128
  %p = getelementptr i8, ptr @slots, i64 %at
  ret ptr %p
}}
; a worker: waits for its slot, runs what is posted there, says that it is done
define ptr @opfuse_worker(ptr %number) {{
entry:
  %k = ptrtoint ptr %number to i64
  %slot = call ptr @slot(i64 %k)
  %sleepers = getelementptr i8, ptr %slot, i64 4
  %place = getelementptr i8, ptr %slot, i64 8
  br label %idle
idle:
  call void @wait(ptr %slot, i32 0, ptr %sleepers, i32 {IDLE_SPINS})
  %taken = cmpxchg ptr %slot, i32 1, i32 2 seq_cst seq_cst
  %ok = extractvalue {{i32, i1}} %taken, 1
  br i1 %ok, label %run, label %other
run:
  %context = load ptr, ptr %place
  %nthreads = getelementptr i8, ptr %context, i64 {ACTIVE}
  %n = load i64, ptr %nthreads
  call void @work(ptr %context, i64 %k, i64 %n)
  store atomic i32 0, ptr %slot seq_cst, align 4
  call void @wake(ptr %slot, ptr %sleepers)
  br label %idle
other:
  %state = extractvalue {{i32, i1}} %taken, 0
  %stop = icmp eq i32 %state, 3
  br i1 %stop, label %end, label %idle
end:
  ret ptr null
}}
; after a fork the workers are gone: begin anew
define internal void @after_fork() {{
entry:
  %me = call i32 @getpid()
  br label %look
look:
  %old = load atomic i32, ptr @pid acquire, align 4
  %known = icmp eq i32 %old, %me
  br i1 %known, label %done, label %check
check:
  %busy = icmp eq i32 %old, -1
  br i1 %busy, label %pausing, label %claim
pausing:
  call void @pause()
  br label %look
claim:
  %got = cmpxchg ptr @pid, i32 %old, i32 -1 seq_cst seq_cst
  %mine = extractvalue {{i32, i1}} %got, 1
  br i1 %mine, label %reset, label %look
reset:
  call void @llvm.memset.p0.i64(ptr @slots, i8 0, i64 {MAX_THREADS * 128}, i1 false)
  store i32 0, ptr @size
  store atomic i32 0, ptr @lock seq_cst, align 4
  store atomic i32 %me, ptr @pid seq_cst, align 4
  br label %done
done:
  ret void
}}
; take the pool for n threads: how many there are (with the caller), 0 where another call has it or it is closed
define internal i64 @acquire(i64 %n) {{
entry:
  call void @after_fork()
  %got = cmpxchg ptr @lock, i32 0, i32 1 seq_cst seq_cst
  %ok = extractvalue {{i32, i1}} %got, 1
  br i1 %ok, label %open, label %none
open:
  %closed = load i32, ptr @closed
  %shut = icmp ne i32 %closed, 0
  br i1 %shut, label %give, label %clamp
clamp:
  %large = icmp ugt i64 %n, {MAX_THREADS}
  %want = select i1 %large, i64 {MAX_THREADS}, i64 %n
  %size0 = load i32, ptr @size
  %first = zext i32 %size0 to i64
  br label %grow
grow:
  %have = phi i64 [%first, %clamp], [%next, %made]
  %next = add i64 %have, 1
  %enough = icmp uge i64 %next, %want
  br i1 %enough, label %ready, label %make
make:
  %slot = call ptr @slot(i64 %next)
  call void @llvm.memset.p0.i64(ptr %slot, i8 0, i64 128, i1 false)
  %at = getelementptr i64, ptr @handles, i64 %next
  %number = inttoptr i64 %next to ptr
  %rc = call i32 @pthread_create(ptr %at, ptr null, ptr @opfuse_worker, ptr %number)
  %failed = icmp ne i32 %rc, 0
  br i1 %failed, label %ready, label %made
made:
  %size1 = trunc i64 %next to i32
  store i32 %size1, ptr @size
  br label %grow
ready:
  %threads = add i64 %have, 1
  %more = icmp ugt i64 %threads, %want
  %out = select i1 %more, i64 %want, i64 %threads
  ret i64 %out
give:
  store atomic i32 0, ptr @lock seq_cst, align 4
  ret i64 0
none:
  ret i64 0
}}
"""

_STOP = """
; end all workers and wait for them; a call that is under way ends first
define void @opfuse_stop() {
entry:
  call void @after_fork()
  br label %look
look:
  %got = cmpxchg ptr @lock, i32 0, i32 1 seq_cst seq_cst
  %ok = extractvalue {i32, i1} %got, 1
  br i1 %ok, label %have, label %again
again:
  %y = call i32 @sched_yield()
  br label %look
have:
  store i32 1, ptr @closed
  %size = load i32, ptr @size
  %n = zext i32 %size to i64
  br label %loop
loop:
  %k = phi i64 [1, %have], [%k1, %stop]
  %more = icmp ule i64 %k, %n
  br i1 %more, label %stop, label %done
stop:
  %slot = call ptr @slot(i64 %k)
  %sleepers = getelementptr i8, ptr %slot, i64 4
  store atomic i32 3, ptr %slot seq_cst, align 4
  call void @wake(ptr %slot, ptr %sleepers)
  %at = getelementptr i64, ptr @handles, i64 %k
  %handle = load i64, ptr %at
  %rc = call i32 @pthread_join(i64 %handle, ptr null)
  %k1 = add i64 %k, 1
  br label %loop
done:
  store i32 0, ptr @size
  store atomic i32 0, ptr @lock seq_cst, align 4
  ret void
}
; workers that there are now, for tests and reports
define i32 @opfuse_workers() {
  call void @after_fork()
  %n = load i32, ptr @size
  ret i32 %n
}
"""
