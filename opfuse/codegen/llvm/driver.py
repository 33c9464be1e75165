"""The step driver as LLVM IR text: a call of a segment, from posting it to the workers until all of it is done.

    opfuse_drive(context, table, steps)

Each thread walks the table of steps. It claims chunks of tiles from its own share of a step and then from the others'
shares; a step is complete when its count of finished tiles is full, and that, not the arrival of threads, is what a
barrier waits for. A solo step is run by the caller. With one thread a step is one plain call over all its tiles.

Counters of a step: one line a thread with the tiles claimed of its share, then a line with the number of finished tiles
and the number of sleepers that wait for it.
"""

from __future__ import annotations

from opfuse.codegen.llvm.context import (
    ACTIVE,
    COUNTERS,
    COUNTERS_BYTES,
    DELAY,
    LINE,
    PROFILE,
    SCRATCH,
    SCRATCH_STRIDE,
    STEP_BARRIER,
    STEP_BYTES,
    STEP_CHUNK,
    STEP_SOLO,
    STEP_TILES,
    STEPS,
    TABLE,
    THREADS,
)


def driver_text(wait_spins: int) -> str:
    """The driver's functions; they call what `threads.py` defines beside them."""
    return "\n".join((_DRIVE, _WORK, _CLAIM, _FINISH, _DEBUG)).replace("WAIT_SPINS", str(wait_spins))


_DRIVE = f"""
; the caller's side of a run
define void @opfuse_drive(ptr %context, ptr %table, i64 %steps) {{
entry:
  %tablep = getelementptr i8, ptr %context, i64 {TABLE}
  store ptr %table, ptr %tablep
  %stepsp = getelementptr i8, ptr %context, i64 {STEPS}
  store i64 %steps, ptr %stepsp
  %threadsp = getelementptr i8, ptr %context, i64 {THREADS}
  %activep = getelementptr i8, ptr %context, i64 {ACTIVE}
  %asked = load i64, ptr %threadsp
  %several = icmp ugt i64 %asked, 1
  br i1 %several, label %take, label %alone
take:
  %n = call i64 @acquire(i64 %asked)
  %got = icmp ugt i64 %n, 0
  br i1 %got, label %prepare, label %alone
alone:
  store i64 1, ptr %activep
  call void @work(ptr %context, i64 0, i64 1)
  ret void
prepare:
  store i64 %n, ptr %activep
  %countersp = getelementptr i8, ptr %context, i64 {COUNTERS}
  %counters = load ptr, ptr %countersp
  %bytesp = getelementptr i8, ptr %context, i64 {COUNTERS_BYTES}
  %bytes = load i64, ptr %bytesp
  call void @llvm.memset.p0.i64(ptr %counters, i8 0, i64 %bytes, i1 false)
  br label %post
post:
  %k = phi i64 [1, %prepare], [%k1, %posting]
  %more = icmp ult i64 %k, %n
  br i1 %more, label %posting, label %mine
posting:
  %slot = call ptr @slot(i64 %k)
  %place = getelementptr i8, ptr %slot, i64 8
  %sleepers = getelementptr i8, ptr %slot, i64 4
  store ptr %context, ptr %place
  store atomic i32 1, ptr %slot seq_cst, align 4
  call void @wake(ptr %slot, ptr %sleepers)
  %k1 = add i64 %k, 1
  br label %post
mine:
  call void @work(ptr %context, i64 0, i64 %n)
  br label %join
join:
  %j = phi i64 [1, %mine], [%j1, %joined]
  %left = icmp ult i64 %j, %n
  br i1 %left, label %recall, label %release
recall:
  %jslot = call ptr @slot(i64 %j)
  %jsleepers = getelementptr i8, ptr %jslot, i64 4
  %back = cmpxchg ptr %jslot, i32 1, i32 0 seq_cst seq_cst
  %recalled = extractvalue {{i32, i1}} %back, 1
  br i1 %recalled, label %joined, label %finish
finish:
  call void @wait(ptr %jslot, i32 2, ptr %jsleepers, i32 WAIT_SPINS)
  br label %joined
joined:
  %j1 = add i64 %j, 1
  br label %join
release:
  store atomic i32 0, ptr @lock seq_cst, align 4
  ret void
}}
"""

_WORK = f"""
; work(context, thread, threads): all steps, as one of the threads
define internal void @work(ptr %context, i64 %me, i64 %threads) {{
entry:
  %tablep = getelementptr i8, ptr %context, i64 {TABLE}
  %table = load ptr, ptr %tablep
  %stepsp = getelementptr i8, ptr %context, i64 {STEPS}
  %steps = load i64, ptr %stepsp
  %scratchp = getelementptr i8, ptr %context, i64 {SCRATCH}
  %scratches = load ptr, ptr %scratchp
  %stridep = getelementptr i8, ptr %context, i64 {SCRATCH_STRIDE}
  %stride = load i64, ptr %stridep
  %mine = mul i64 %stride, %me
  %scratch = getelementptr i8, ptr %scratches, i64 %mine
  %profilep = getelementptr i8, ptr %context, i64 {PROFILE}
  %profile = load ptr, ptr %profilep
  %profiled = icmp ne ptr %profile, null
  %timed0 = icmp eq i64 %me, 0
  %timed = and i1 %profiled, %timed0
  %single = icmp eq i64 %threads, 1
  %countersp = getelementptr i8, ptr %context, i64 {COUNTERS}
  %counters = load ptr, ptr %countersp
  %lines = add i64 %threads, 1
  %step_counters = mul i64 %lines, {LINE}
  %share_lines = mul i64 %threads, {LINE}
  br label %step
step:
  %s = phi i64 [0, %entry], [%s1, %next]
  %first = phi i64 [0, %entry], [%first1, %next]
  %more = icmp ult i64 %s, %steps
  br i1 %more, label %load, label %end
load:
  %row_at = mul i64 %s, {STEP_BYTES}
  %row = getelementptr i8, ptr %table, i64 %row_at
  %function = load ptr, ptr %row
  %tilesp = getelementptr i8, ptr %row, i64 {STEP_TILES}
  %tiles = load i64, ptr %tilesp
  %start = call i64 @stamp(i1 %timed)
  br i1 %single, label %whole, label %shared
whole:
  call void %function(ptr %context, ptr %scratch, i64 0, i64 %tiles)
  br label %stop_clock
shared:
  %base_at = mul i64 %s, %step_counters
  %base = getelementptr i8, ptr %counters, i64 %base_at
  %finished = getelementptr i8, ptr %base, i64 %share_lines
  %solop = getelementptr i8, ptr %row, i64 {STEP_SOLO}
  %solo = load i64, ptr %solop
  %is_solo = icmp ne i64 %solo, 0
  br i1 %is_solo, label %solo_step, label %claims
solo_step:
  %caller = icmp eq i64 %me, 0
  br i1 %caller, label %solo_run, label %barrier
solo_run:
  call void %function(ptr %context, ptr %scratch, i64 0, i64 %tiles)
  %tiles32 = trunc i64 %tiles to i32
  call void @finish(ptr %finished, i32 %tiles32, i32 %tiles32)
  br label %barrier
claims:
  %did = call i64 @claim(ptr %context, ptr %scratch, ptr %row, ptr %base, i64 %me, i64 %threads)
  %did32 = trunc i64 %did to i32
  %all32 = trunc i64 %tiles to i32
  call void @finish(ptr %finished, i32 %did32, i32 %all32)
  br label %barrier
barrier:
  %barrierp = getelementptr i8, ptr %row, i64 {STEP_BARRIER}
  %wanted = load i64, ptr %barrierp
  %wanted1 = icmp ne i64 %wanted, 0
  %last = add i64 %s, 1
  %parts = icmp ult i64 %last, %steps
  %wanted2 = and i1 %wanted1, %parts
  %waits = or i1 %wanted2, %profiled
  br i1 %waits, label %waiting, label %stop_clock
waiting:
  %w = phi i64 [%first, %barrier], [%w1, %waited]
  %w_left = icmp ule i64 %w, %s
  br i1 %w_left, label %one, label %stop_clock
one:
  %w_row_at = mul i64 %w, {STEP_BYTES}
  %w_row = getelementptr i8, ptr %table, i64 %w_row_at
  %w_tilesp = getelementptr i8, ptr %w_row, i64 {STEP_TILES}
  %w_tiles = load i64, ptr %w_tilesp
  %w_tiles32 = trunc i64 %w_tiles to i32
  %w_at = mul i64 %w, %step_counters
  %w_end = add i64 %w_at, %share_lines
  %w_finished = getelementptr i8, ptr %counters, i64 %w_end
  call void @complete(ptr %w_finished, i32 %w_tiles32)
  br label %waited
waited:
  %w1 = add i64 %w, 1
  br label %waiting
stop_clock:
  %passed = phi i1 [false, %whole], [false, %barrier], [true, %waiting]
  call void @record(i1 %timed, ptr %profile, i64 %s, i64 %start)
  br label %next
next:
  %s1 = add i64 %s, 1
  %first1 = select i1 %passed, i64 %s1, i64 %first
  br label %step
end:
  ret void
}}
"""

_CLAIM = f"""
; claim chunks, of one's own share first, then of the others'; returns the number of tiles run
define internal i64 @claim(ptr %context, ptr %scratch, ptr %row, ptr %base, i64 %me, i64 %threads) {{
entry:
  %function = load ptr, ptr %row
  %tilesp = getelementptr i8, ptr %row, i64 {STEP_TILES}
  %tiles = load i64, ptr %tilesp
  %chunkp = getelementptr i8, ptr %row, i64 {STEP_CHUNK}
  %chunk = load i64, ptr %chunkp
  %delayp = getelementptr i8, ptr %context, i64 {DELAY}
  %seed = load i64, ptr %delayp
  %delayed = icmp ne i64 %seed, 0
  br label %victim
victim:
  %v = phi i64 [0, %entry], [%v1, %next]
  %done = phi i64 [0, %entry], [%done1, %next]
  %more = icmp ult i64 %v, %threads
  br i1 %more, label %share, label %end
share:
  %turned = add i64 %me, %v
  %over = icmp uge i64 %turned, %threads
  %less = sub i64 %turned, %threads
  %who = select i1 %over, i64 %less, i64 %turned
  %lo0 = mul i64 %tiles, %who
  %lo = udiv i64 %lo0, %threads
  %hi0 = add i64 %lo0, %tiles
  %hi = udiv i64 %hi0, %threads
  %line = mul i64 %who, {LINE}
  %counter = getelementptr i8, ptr %base, i64 %line
  br label %try
try:
  %done1 = phi i64 [%done, %share], [%done2, %run]
  call void @delay(i1 %delayed, i64 %seed, i64 %me, i64 %done1)
  %taken = atomicrmw add ptr %counter, i64 %chunk monotonic
  %begin = add i64 %lo, %taken
  %there = icmp ult i64 %begin, %hi
  br i1 %there, label %run, label %next
run:
  %full = add i64 %begin, %chunk
  %cut = icmp ugt i64 %full, %hi
  %stop = select i1 %cut, i64 %hi, i64 %full
  call void %function(ptr %context, ptr %scratch, i64 %begin, i64 %stop)
  %count = sub i64 %stop, %begin
  %done2 = add i64 %done1, %count
  br label %try
next:
  %v1 = add i64 %v, 1
  br label %victim
end:
  ret i64 %done
}}
"""

_FINISH = """
; add to the finished tiles of a step; who makes it full wakes those who sleep on it
define internal void @finish(ptr %finished, i32 %tiles, i32 %all) {
entry:
  %any = icmp ne i32 %tiles, 0
  br i1 %any, label %add, label %done
add:
  %old = atomicrmw add ptr %finished, i32 %tiles seq_cst
  %now = add i32 %old, %tiles
  %full = icmp eq i32 %now, %all
  br i1 %full, label %wake, label %done
wake:
  %sleepers = getelementptr i8, ptr %finished, i64 4
  call void @wake(ptr %finished, ptr %sleepers)
  br label %done
done:
  ret void
}
define internal void @complete(ptr %finished, i32 %all) {
entry:
  %sleepers = getelementptr i8, ptr %finished, i64 4
  br label %look
look:
  %n = load atomic i32, ptr %finished acquire, align 4
  %full = icmp eq i32 %n, %all
  br i1 %full, label %done, label %waiting
waiting:
  call void @wait(ptr %finished, i32 %n, ptr %sleepers, i32 WAIT_SPINS)
  br label %look
done:
  ret void
}
"""

_DEBUG = """
; debug mode: wait a while that differs from thread to thread and from claim to claim
define internal void @delay(i1 %on, i64 %seed, i64 %me, i64 %at) {
entry:
  br i1 %on, label %pick, label %done
pick:
  %clock = call i64 @opfuse_clock()
  %a = add i64 %seed, %me
  %b = add i64 %a, %at
  %c = xor i64 %b, %clock
  %d = mul i64 %c, 6364136223846793005
  %e = lshr i64 %d, 52
  %long = icmp ugt i64 %e, 3072
  %n = select i1 %long, i64 %e, i64 0
  br label %spin
spin:
  %k = phi i64 [0, %pick], [%k1, %again]
  %more = icmp ult i64 %k, %n
  br i1 %more, label %again, label %done
again:
  call void @pause()
  %k1 = add i64 %k, 1
  br label %spin
done:
  ret void
}
define internal i64 @stamp(i1 %on) {
entry:
  br i1 %on, label %read, label %none
read:
  %t = call i64 @opfuse_clock()
  ret i64 %t
none:
  ret i64 0
}
define internal void @record(i1 %on, ptr %profile, i64 %s, i64 %start) {
entry:
  br i1 %on, label %write, label %done
write:
  %t = call i64 @opfuse_clock()
  %took = sub i64 %t, %start
  %p = getelementptr i64, ptr %profile, i64 %s
  %old = load i64, ptr %p
  %new = add i64 %old, %took
  store i64 %new, ptr %p
  br label %done
done:
  ret void
}
"""
