"""How long each thing may take before it counts as hung: the one table of time limits.

Each only bounds a hang; none is expected to be reached. A limit is written down here, under a name that
ends in its unit, with its reason below it, and nowhere else (a test looks). docs/reference.md lists them.
"""

from __future__ import annotations

# --------------------------------------------------------------------------- what a user may set

CALL_TIMEOUT_S = 60.0
"""One request about a case to the candidate, where ``--timeout`` says nothing: most take milliseconds."""

CAPTURE_TIMEOUT_S = 300.0
"""One capture by Nsight Compute, where ``profile --timeout`` says nothing: it replays a kernel many times."""

BATCH_TIMEOUT_FACTOR = 10.0
"""A batch may take ten times what one call may before it counts as hung."""

# --------------------------------------------------------------------------- workers

WORKER_START_TIMEOUT_S = 180.0
"""A worker's first answer: importing torch and opening a GPU takes 3-9 s on a slow or busy machine."""

LOAD_TIMEOUT_S = 120.0
"""The candidate's library opened, or the card's reference imported: either may import large packages."""

IMPORTER_TIMEOUT_S = 60.0
"""The process that compiles torch's modules to bytecode, waited for at the end of a run."""

WORKER_EXIT_TIMEOUT_S = 2.0
"""A worker that closed its channel may be about to exit, and how it does says more; then it is killed."""

WORKER_OUTPUT_TIMEOUT_S = 0.5
"""What an ended worker still says: a child of its may hold the pipe open."""

STATE_TIMEOUT_S = 60.0
"""The candidate's process described: threads, mappings and flags are read, nothing is computed."""

TRACE_TIMEOUT_S = 120.0
"""One traced call of every legal case."""

CONTRACT_CHECK_TIMEOUT_S = 300.0
"""One check of the contract: opcheck compiles, gradcheck calls the operator twice an input element."""

# --------------------------------------------------------------------------- the oracle

CASE_TIMEOUT_S = 120.0
"""The oracle makes a case or compares its results: the reference is computed in float64 too."""

FORGET_TIMEOUT_S = 30.0
"""The oracle frees what it made for one case."""

NULL_AUDIT_TIMEOUT_S = 120.0
"""The oracle compares every null candidate with one case's expected values."""

AUDITED_CASE_TIMEOUT_S = 300.0
"""``audit-task`` has a case made or freed, timed shapes too."""

# --------------------------------------------------------------------------- times

TIMED_CASE_TIMEOUT_S = 300.0
"""A timed case made, handed over, copied or compared: hundreds of MiB may cross a socket."""

DROP_TIMING_TIMEOUT_S = 60.0
"""Either side frees a timed case: gigabytes may go back to the kernel."""

TIMER_TIMEOUT_S = 120.0
"""The timer measures itself: its floor, its tick, and the rate of large copies."""

WITNESS_TIMEOUT_S = 120.0
"""CUPTI attached, or one case traced by it: the first trace of a process takes most of a second."""

SPIN_TIMEOUT_S = 120.0
"""One request of the calibration: forty times its longest batch."""

SPIN_REPEATS_TIMEOUT_S = 60.0
"""A graph of 125 spins captured or replayed: 0.25 s of work."""

# --------------------------------------------------------------------------- locks

DEVICE_LOCK_TIMEOUT_S = 3600.0
"""The device held by another measurement: others hold it for minutes, and several may wait."""

CAPTURE_LOCK_TIMEOUT_S = 600.0
"""The same for ``profile``, whose run is short and can be started again."""

INDEX_LOCK_TIMEOUT_S = 30.0
"""The index of an archive held by another run, which writes one row."""

NO_TIMEOUT_S = 0.0
"""A look that does not wait: a lock whose holder is alive, a message that nothing asked for."""

# --------------------------------------------------------------------------- programs

BUILD_TIMEOUT_S = 900.0
"""A candidate compiled and linked: CUDA units full of templates take minutes."""

TOOL_TIMEOUT_S = 10.0
"""A program asked for one answer, such as its version, where nothing shorter or longer is said."""

TOOL_OUTPUT_TIMEOUT_S = 0.5
"""What the pipes of a program that has ended still hold: a daemon may hold them open."""

DOCTOR_TOOL_TIMEOUT_S = 0.6
"""All compilers and tools asked for their versions at once by ``doctor``, which answers within a second."""

DEMANGLE_TIMEOUT_S = 2.0
"""``c++filt`` on one symbol; the mangled name is shown else."""

DISASSEMBLY_TIMEOUT_S = 20.0
"""``cuobjdump`` on one library; the facts about device code are then left out."""

NCU_VERSION_TIMEOUT_S = 30.0
"""Nsight Compute asked for its version: a large program, from a disk that may be slow."""

NCU_IMPORT_TIMEOUT_S = 120.0
"""Nsight Compute reads a report of its own and prints it as a table."""

SANDBOX_PROBE_TIMEOUT_S = 30.0
"""The trials of one cage: none computes, and a busy machine may be slow to start a process."""

CONNECT_TIMEOUT_S = 0.5
"""One trial's connection to a socket of this machine, which is reached at once or not at all."""

NAMESPACE_TIMEOUT_S = 2.0
"""``unshare --user true``, which says whether user namespaces may be made."""

SELF_TEST_TIMEOUT_S = 300.0
"""All verifications of ``doctor --self-test`` together, two at once."""
