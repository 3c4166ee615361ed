"""Every code that mini-kv gives: what it means, whose fault it is, the axes it stands on and its exit code.

Findings and errors are made from these members, and docs/reference.md prints them. A record keeps a code as
text: archives hold codes of other versions, and where a candidate's process names an exception, its name is
the code. :meth:`Code.named` finds the member of a text, where there is one.
"""

from __future__ import annotations

import enum
from typing import Any, Literal, NamedTuple


class ExitCode(enum.IntEnum):
    """Process exit codes, stable across releases."""

    ACCEPTED = 0
    CONFIGURATION = 2
    COMPILATION = 3
    CORRECTNESS = 4
    BENCHMARK = 5
    REGRESSION = 6
    INTEGRITY = 7
    INTERNAL = 70
    INTERRUPTED = 130


class Fault(enum.Enum):
    """Whose fault a code tells of: ``CALLER`` is the command line, ``ARCHIVE`` what was kept."""

    CANDIDATE = "candidate"
    CARD = "card"
    MACHINE = "machine"
    MINI_KV = "mini-kv"
    CALLER = "caller"
    ARCHIVE = "archive"
    NOBODY = "nobody"


AxisName = Literal["build", "numerics", "memory", "contract", "timing", "regression", "isolation"]


class CodeFacts(NamedTuple):
    """What is known of one code.

    ``exit_code`` is what a process ends with where this code ends it: ``ACCEPTED`` for what ends none, and
    ``None`` where the stage decides in which it was met. ``axes`` are those whose status it explains, none
    where that is the axis of whatever was asked. ``uncomparable`` says that values have nothing to be
    compared with.
    """

    meaning: str
    fault: Fault
    axes: tuple[AxisName, ...]
    exit_code: ExitCode | None
    uncomparable: bool = False


_entered: list[CodeFacts] = []


class _Kind(NamedTuple):
    """What neighbours in the list below share; a call with a sentence enters the next code."""

    fault: Fault
    axes: tuple[AxisName, ...]
    exit_code: ExitCode | None

    def __call__(self, meaning: str, *, uncomparable: bool = False) -> enum.auto:
        _entered.append(CodeFacts(meaning, self.fault, self.axes, self.exit_code, uncomparable))
        return enum.auto()


_NO_AXIS: tuple[AxisName, ...] = ()
_CASES: tuple[AxisName, ...] = ("numerics", "contract")
_call = _Kind(Fault.CANDIDATE, _NO_AXIS, None)
_hung_up = _Kind(Fault.NOBODY, _NO_AXIS, None)
_build = _Kind(Fault.CANDIDATE, ("build",), ExitCode.COMPILATION)
_hindered = _Kind(Fault.MACHINE, ("build",), ExitCode.COMPILATION)
_numerics = _Kind(Fault.CANDIDATE, ("numerics",), ExitCode.CORRECTNESS)
_both = _Kind(Fault.CANDIDATE, ("numerics", "memory"), ExitCode.CORRECTNESS)
_case = _Kind(Fault.CANDIDATE, _CASES, ExitCode.CORRECTNESS)
_memory = _Kind(Fault.CANDIDATE, ("memory",), ExitCode.CORRECTNESS)
_contract = _Kind(Fault.CANDIDATE, ("contract",), ExitCode.CORRECTNESS)
_unasked = _Kind(Fault.NOBODY, ("contract",), ExitCode.ACCEPTED)
_timing = _Kind(Fault.CANDIDATE, ("timing",), ExitCode.BENCHMARK)
_forged = _Kind(Fault.CANDIDATE, ("timing",), ExitCode.INTEGRITY)
_unsteady = _Kind(Fault.MACHINE, ("timing",), ExitCode.BENCHMARK)
_unproven = _Kind(Fault.MACHINE, ("timing",), ExitCode.ACCEPTED)
_slower = _Kind(Fault.CANDIDATE, ("regression",), ExitCode.REGRESSION)
_slowish = _Kind(Fault.CANDIDATE, ("regression",), ExitCode.ACCEPTED)
_compared = _Kind(Fault.NOBODY, ("regression",), ExitCode.ACCEPTED)
_unjudged = _Kind(Fault.MACHINE, ("regression",), ExitCode.ACCEPTED)
_profiled = _Kind(Fault.CANDIDATE, _NO_AXIS, ExitCode.BENCHMARK)
_profiler = _Kind(Fault.MACHINE, _NO_AXIS, ExitCode.BENCHMARK)
_given = _Kind(Fault.CANDIDATE, _NO_AXIS, ExitCode.CONFIGURATION)
_card = _Kind(Fault.CARD, _NO_AXIS, ExitCode.CONFIGURATION)
_proofless = _Kind(Fault.CARD, _NO_AXIS, None)
_machine = _Kind(Fault.MACHINE, _NO_AXIS, ExitCode.CONFIGURATION)
_caller = _Kind(Fault.CALLER, _NO_AXIS, ExitCode.CONFIGURATION)
_file = _Kind(Fault.ARCHIVE, _NO_AXIS, ExitCode.CONFIGURATION)
_tampered = _Kind(Fault.ARCHIVE, _NO_AXIS, ExitCode.INTEGRITY)
_lacking = _Kind(Fault.ARCHIVE, _NO_AXIS, ExitCode.ACCEPTED)
_own = _Kind(Fault.MINI_KV, _NO_AXIS, ExitCode.INTERNAL)
_remark = _Kind(Fault.NOBODY, _NO_AXIS, ExitCode.ACCEPTED)


class Code(enum.StrEnum):
    """A code. Its value is its name, which is written once."""

    facts: CodeFacts

    def __new__(cls, name: str, facts: CodeFacts) -> Code:
        """Return the member of that name."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.facts = facts
        return member

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[Any]) -> Any:
        return name, _entered[count]

    @classmethod
    def named(cls, text: str | None) -> Code | None:
        """Return the code that a record's text is; ``None`` for another version's or a foreign one."""
        return cls.__members__.get(text) if text is not None else None

    # ----------------------------------------------------------------- a worker that gave no answer
    CRASHED = _call("the process died from a signal")
    EXITED = _call("the process left before it answered")
    TIMEOUT = _call("no answer came within the time limit, and the process was killed")
    OUTPUT_FLOOD = _call("the process printed more than is read of it, and was killed")
    CHANNEL_CLOSED = _call("the process closed its channel to the judge but lives on")
    PROTOCOL_VIOLATION = _call("the process sent what is no answer to the request")
    CLOSED = _hung_up("the judge had closed the worker")
    ABANDONED = _hung_up("the answer was not waited for: a call hung, or the run was ended")

    # ----------------------------------------------------------------- build and load
    COMPILE_ERROR = _build("a source does not compile; the compiler's first error follows")
    COMPILE_TIMEOUT = _build("a source was not built within the time limit")
    FOREIGN_INCLUDE = _build("a file is included from outside the candidate's folder and the known headers")
    LINK_ERROR = _build("the library does not link, or needs a symbol that is defined nowhere")
    NO_SOURCES = _build("the manifest names no source for the device")
    BUILD_FAILED = _build("the candidate does not build, so there is nothing to profile")
    COMPILER_KILLED = _hindered("something killed the compiler; memory may have run out")
    LIBRARY_CHANGED = _hindered("the library on disk is not the one that was built")
    LIBRARY_DOES_NOT_LOAD = _build("the library cannot be opened; the loader's own words follow")
    OPERATOR_ALREADY_REGISTERED = _build("torch has an operator of that name before the library is opened")
    OPERATOR_NOT_REGISTERED = _build("the library registers no operator of the manifest's name")
    OPERATOR_REPLACED = _build("something was put in the operator's place in torch.ops")
    PYTHON_FILE_FAILED = _build("the candidate's Python file raised an exception")
    NOT_REGISTERED_FOR_DEVICE = _build("the operator has no kernel for a backend of the manifest")
    SCHEMA_DIFFERS = _build("the operator's schema is not the manifest's")
    NO_FAKE_KERNEL = _build("the manifest names backend meta, and the operator has no fake kernel")
    LOAD_CRASHED = _build("the process died from a signal while the library was opened")
    LOAD_EXITED = _build("the process left while the library was opened")
    LOAD_TIMEOUT = _build("the library was not opened within the time limit")
    LOAD_OUTPUT_FLOOD = _build("the process printed too much while the library was opened")
    LOAD_CHANNEL_CLOSED = _build("the process closed its channel while the library was opened")
    LOAD_PROTOCOL_VIOLATION = _build("the process sent no answer while the library was opened")
    LOAD_CLOSED = _build("the judge had closed the worker before the library was opened")

    # ----------------------------------------------------------------- results of a call
    WRONG_OUTPUT_COUNT = _numerics("the operator returned more or fewer tensors", uncomparable=True)
    WRONG_SHAPE = _numerics("an output has another shape than the plan demands", uncomparable=True)
    WRONG_DTYPE = _numerics("an output has another dtype than the plan demands", uncomparable=True)
    WRONG_DEVICE = _numerics("an output is on another device than the plan demands")
    WRONG_STRIDES = _numerics("an output is not contiguous")
    WRONG_VALUES = _numerics("elements differ from the reference by more than the card's tolerance")
    WRONG_GRADIENTS = _numerics("a gradient differs from the reference's, or cannot be had")
    NOT_COMPARABLE = _numerics("the oracle cannot compare what the call returned")
    RAISED = _numerics("a legal call raised an exception")
    WORKER_FAILED = _numerics("the worker could not carry out what it was asked")
    DTYPE_NOT_CLAIMED = _numerics("the card demands a dtype that the manifest does not claim")
    OUTPUTS_NOT_KEPT = _numerics("the worker did not give the kept outputs again")
    CASE_FAILED = _numerics("the case is not correct, so its profile would mean nothing")
    PROFILED_OUTPUT_WRONG = _numerics("the profiled call returned wrong values, or none")
    NOT_DETERMINISTIC = _both("a second call on equal inputs gave other bytes")
    ORACLE_HINDERED = _case("the candidate's processes left the oracle no room to make the case")

    # ----------------------------------------------------------------- memory
    INPUT_MUTATED = _memory("the call wrote to an input, or changed its form")
    INPUTS_NOT_RETURNED = _memory("more or fewer input storages came back than were sent")
    OUT_OF_BOUNDS_WRITE = _memory("the call wrote to memory that it was not given")
    GUARDS_NOT_RETURNED = _memory("more or fewer guard zones came back than there are input storages")
    ALIASES_INPUT = _memory("an output shares its storage with an input")
    OUTPUT_HELD = _memory("something other than the caller holds the memory of an output")
    OUTPUT_CHANGED_LATER = _memory("a result was right when it was returned and was overwritten later")

    # ----------------------------------------------------------------- illegal inputs and contract
    ILLEGAL_INPUT_ACCEPTED = _contract("the call returned a result where the card demands an exception")
    WRONG_EXCEPTION = _contract("the call raised another exception than the card demands")
    WRONG_MESSAGE = _contract("the exception's message lacks what the card demands")
    DEVICE_LOST = _contract("after a refused call the device no longer works")
    UNUSABLE_AFTER_ILLEGAL = _contract("after a refused call a legal case no longer passes in that process")
    NO_EXPECTATION = _Kind(Fault.CARD, ("contract",), ExitCode.CORRECTNESS)(
        "the card states no exception for an illegal case"
    )
    OPCHECK_TEST_SCHEMA = _contract("the operator does not do what its schema says")
    OPCHECK_TEST_AUTOGRAD_REGISTRATION = _contract("autograd is registered in a way that torch refuses")
    OPCHECK_TEST_FAKETENSOR = _contract("the fake kernel's results are not of the real ones' form")
    OPCHECK_TEST_AOT_DISPATCH_DYNAMIC = _contract("the operator fails under AOTAutograd with dynamic shapes")
    DYNAMIC_SHAPES = _contract("one compiled graph does not serve several sizes")
    FAKE_RESULTS = _contract("the fake kernel promises another form than a case's real result has")
    GRADCHECK = _contract("torch.autograd.gradcheck does not pass")
    CURRENT_STREAM = _contract("the operator does not work on the current CUDA stream")
    GRAPH_CAPTURE = _contract("the operator cannot be captured in a CUDA graph and replayed")
    SECOND_DEVICE = _contract("the operator does not work on a second GPU")
    AUTOGRAD_MISSING = _contract("the card demands gradients, and the manifest says autograd: false")
    FLOAT64_NOT_CLAIMED = _contract("gradcheck needs float64, and the manifest does not claim it")
    CHECK_FAILED_TO_RUN = _contract("a contract check could not be carried out")
    UNANSWERED = _contract("the worker gave no answer to a contract check")
    NOT_TRACED = _contract("no call could be traced, so nothing is known of what the calls did")
    GLOBAL_STATE_CHANGED = _contract("the candidate changed its process: torch's flags, threads or the like")
    WORKSPACE_KEPT = _contract("the calls left memory of torch's allocated, and the card allows no workspace")
    LIBRARY_CALL = _Kind(Fault.CANDIDATE, ("contract", "timing"), ExitCode.CORRECTNESS)(
        "the candidate called a library where the card wants its own kernels"
    )
    TOO_FEW_SIZES = _unasked("the card has no two core cases that differ in size only")
    WORKER_GONE = _unasked("the process ended before it could be asked; the last case has failed for that")
    GLOBAL_STATE_ALLOWED = _unasked("the candidate changed its process, and the card allows it")
    NOTHING_DEMANDED = _unasked("the card demands no contract check")

    # ----------------------------------------------------------------- cases that prove nothing
    CASE_NOT_MAKEABLE = _proofless("the card's input factory or reference fails, or returns no tensor")
    REFERENCE_OUTSIDE_TOLERANCE = _proofless("the reference misses the card's own tolerance against FP64")
    NULL_PASSES = _proofless("a candidate that computes nothing would pass the case too")
    NO_EVIDENCE = _Kind(Fault.CARD, ("numerics", "memory"), ExitCode.CORRECTNESS)(
        "no case was run that proves anything, or no call returned"
    )
    INCOMPLETE = _Kind(Fault.NOBODY, _CASES, None)("the run ended before everything was asked")
    NOT_REACHED = _Kind(Fault.NOBODY, ("build", *_CASES, "memory", "timing"), None)(
        "an earlier stage ended the run"
    )
    INTERRUPTED = _Kind(Fault.NOBODY, _NO_AXIS, ExitCode.INTERRUPTED)("the run was interrupted")
    WEAK_ISOLATION = _Kind(Fault.MACHINE, ("isolation",), ExitCode.ACCEPTED)(
        "the candidate could read something of the judge's"
    )

    # ----------------------------------------------------------------- times
    TIMED_OUTPUT_WRONG = _Kind(Fault.CANDIDATE, ("timing",), ExitCode.CORRECTNESS)(
        "the output of a timed call is wrong, although the case passed untimed"
    )
    INPUT_MUTATED_WHILE_TIMED = _Kind(Fault.CANDIDATE, ("memory", "timing"), ExitCode.CORRECTNESS)(
        "a timed call wrote to an input, although the case left its inputs alone untimed"
    )
    CLOCK_CONTRADICTS = _forged("a call takes longer by the judge's clock than is claimed")
    REPEATED_INPUTS_FASTER = _forged("calls on inputs never seen before take longer: results are remembered")
    IMPOSSIBLE_TIME = _timing("a call took less time than the memory bus needs for its bytes")
    WORK_OUTSIDE_PAIR = _timing("the device worked for the call outside what was timed")
    FASTER_THAN_VERIFIED = _timing("a call was faster in a pair of processes than under the plan")
    NOT_TIMED = _Kind(Fault.CANDIDATE, ("timing", "regression"), ExitCode.BENCHMARK)(
        "the candidate could not be timed, or nothing was"
    )
    NOT_A_TIME = _timing("samples or floors are not times")
    SHORT_TRANSCRIPT = _timing("fewer samples came back than the plan demands")
    BELOW_FLOOR = _timing("a call takes no longer than an empty one")
    OTHER_SIDE_LOST = _Kind(Fault.NOBODY, ("timing",), ExitCode.BENCHMARK)(
        "the other candidate gave no times for the case"
    )
    UNSTABLE = _Kind(Fault.MACHINE, ("timing", "regression"), ExitCode.BENCHMARK)(
        "the times of a case miss the quality gate"
    )
    CANDIDATE_P50_UNSTABLE = _unsteady("the candidate's P50 varies too much between repeats")
    CANDIDATE_P95_UNSTABLE = _unsteady("the candidate's P95 varies too much between repeats")
    REFERENCE_P50_UNSTABLE = _unsteady("the reference's P50 varies too much between repeats")
    TIME_NOT_REPRODUCED = _unsteady("batches right after the plan's samples take another time")
    LAUNCH_EXPOSED = _unsteady("the device waited for the host in too many samples")
    THROTTLED = _unsteady("the GPU was throttled while it was timed")
    GPU_SHARED = _unsteady("another process used the GPU while it was timed")
    WITNESS_MISSING = _unsteady("CUPTI gave no kernel times")
    TOO_FEW_REPEATS = _Kind(Fault.CARD, ("timing",), ExitCode.BENCHMARK)(
        "the plan has too few repeats to judge their spread"
    )
    UNSTABLE_ON_CPU = _unproven("cases are unstable, which on the CPU is a warning")
    TIME_UNVERIFIED = _unproven("no clock outside the candidate's process could bound the times")
    SKIPPED = _Kind(Fault.NOBODY, ("timing",), ExitCode.ACCEPTED)("the benchmark was skipped on request")

    # ----------------------------------------------------------------- regression
    P50_SLOWER = _slower("the P50 is over its limit in two batches")
    PAIRED_P50_SLOWER = _slower("the P50 is over its limit in pairs with the baseline's own code")
    P50_SLOWER_ONCE = _slowish("the P50 is over its limit in one batch, and another does not confirm it")
    P95_SLOWER = _slowish("the P95 is over its limit")
    PAIRED_SLOWER = _slowish("pairs with the baseline's own code show a slowdown below the limit")
    NEEDS_CONFIRMATION = _slowish("the P50 is over its limit; a second batch must confirm it")
    FASTER = _compared("the P50 is lower than the baseline's by more than the limit")
    WITHIN_LIMITS = _compared("the times are the baseline's, within the limits")
    NO_BASELINE = _compared("no baseline was given")
    NOT_COMPARED = _compared("an earlier stage kept the baseline from being compared with")
    NO_CASES = _compared("the baseline times no case")
    CASE_NOT_IN_BASELINE = _compared("the baseline has no such case")
    CASE_NOT_TIMED = _compared("the case was not timed")
    BASELINE_NOT_TIMED = _compared("the baseline did not time the case")
    REFERENCE_MOVED = _unjudged("the reference itself is faster or slower than it was")
    CONFIRMATION_CASE_NOT_TIMED = _compared("the second batch did not time the case")
    CONFIRMATION_BASELINE_NOT_TIMED = _compared("the second batch has no baseline to confirm by")
    CONFIRMATION_UNSTABLE = _unjudged("the times of the second batch are unstable")
    CONFIRMATION_REFERENCE_MOVED = _unjudged("the reference had moved in the second batch")
    PAIRS_UNUSABLE = _unjudged("the test over pairs of processes could not be made")
    BASELINE_NOT_REBUILT = _unjudged("the baseline's sources cannot be built here")
    NO_ENVIRONMENT = _compared("the environment is not known on both sides")
    DIFFERENT_TASK = _compared("the baseline is of another task")
    DIFFERENT_OPERATOR_VERSION = _compared("the baseline is of another operator version")
    DIFFERENT_SUITE = _compared("the card measures something else than it did for the baseline")
    DIFFERENT_ENVIRONMENT = _compared("the baseline was measured in another environment")
    DIFFERENT_DEVICE = _compared("the baseline was timed on another kind of device")

    # ----------------------------------------------------------------- profiles
    NCU_MISSING = _machine("Nsight Compute (ncu) was not found, or does not answer")
    NCU_NO_PERMISSION = _machine("the driver lets only an administrator read the performance counters")
    DEVICE_BUSY = _machine("another measurement held the device too long (met while timing: 70)")
    NCU_FAILED = _profiler("Nsight Compute failed, or left no report")
    REPORT_DOES_NOT_IMPORT = _profiler("Nsight Compute's report cannot be read")
    CSV_MALFORMED = _profiler("Nsight Compute's raw page cannot be read")
    METRIC_MISSING = _profiler("a metric that a profile needs is unknown on this GPU, or unreadable")
    TARGET_FAILED = _profiled("the profiled process did not finish its calls")
    KERNEL_NOT_FOUND = _profiled("no kernel fits the manifest's kernel_name_regex")
    SEVERAL_KERNELS = _profiled("a call launches several kernels that fit the manifest's kernel_name_regex")

    # ----------------------------------------------------------------- card and candidate as they are given
    INVALID_TASK_CARD = _card("the Task Card breaks rules; every one is listed")
    REFERENCE_NOT_IMPORTABLE = _card("the card's reference or input factory cannot be imported")
    TASK_ID = _card("the task's id cannot be the name of an archive folder")
    INVALID_MANIFEST = _given("the candidate manifest breaks rules; every one is listed")
    BAD_SOURCE = _given("a source's name is no plain path in the folder, or of no known kind")
    SOURCE_MISSING = _given("the manifest names a source that the folder does not hold")
    BAD_FLAG = _given("a flag holds characters that a compiler flag may not hold here")
    BAD_NAME = _given("a file's name is not UTF-8")
    NOT_A_FILE = _given("the candidate's folder holds what is neither a file nor a folder")
    LINKED_FOLDER = _given("a folder of the candidate's is a link")
    LINK_OUTSIDE_CANDIDATE = _given("a link leads out of the candidate's folder")
    CANDIDATE_TOO_LARGE = _given("the candidate's folder holds too many files or bytes")

    # ----------------------------------------------------------------- the command line and what it names
    USAGE = _caller("an option or argument of the command line is wrong")
    NO_PROJECT = _caller("there is no project here, nor in a folder above")
    NO_ARTIFACTS = _caller("what is named is not a folder of artifacts")
    NO_TASK_CARD = _caller("the folder holds no Task Card")
    CANDIDATE_MISSING = _caller("the candidate's folder does not exist")
    WRONG_CANDIDATE = _caller("the candidate implements another operator than the card's")
    CASE_UNKNOWN = _caller("the card has no legal case of that name")
    UNKNOWN_ISOLATION = _caller("the isolation level in MINI_KV_ISOLATION is none")
    SOURCES_CHANGED = _caller("the candidate's files changed while they were being read")
    NOT_AN_ATTEMPT = _caller("what is named is not the folder of an attempt")
    ATTEMPT_UNFINISHED = _caller("the attempt was never finished")
    NOT_PROMOTABLE = _caller("the attempt cannot become a baseline")
    BASELINE_EXISTS = _caller("the baseline's file exists already, or is no baseline that may be replaced")
    NOT_A_PROFILE = _caller("what is named is not the folder of a profile")
    PROFILE_FAILED = _caller("the profile holds no capture, so nothing can be compared")
    PROFILES_DIFFER = _caller("the two profiles are not of one case, operator version, device or environment")
    COMPARISON_DIFFERS = _caller("the timed comparison is not of what the profiles are of")

    # ----------------------------------------------------------------- the machine
    CXX_MISSING = _machine("no C++ compiler was found")
    NVCC_MISSING = _machine("no CUDA compiler was found")
    CUDA_MISMATCH = _machine("nvcc and torch are of different major versions of CUDA")
    ARCH_MISSING = _machine("a CUDA build needs a compute capability to build for")
    BAD_ARCH = _machine("what is to be built for is no compute capability")
    TORCH_MISSING = _machine("PyTorch was not found")
    TORCH_WITHOUT_CUDA = _machine("torch is a CPU-only build")
    GPU_MISSING = _machine("no GPU with a driver and a CUDA build of torch is visible")
    DEVICE_UNUSABLE = _machine("a worker cannot open the device")
    ISOLATION_TOO_WEAK = _machine("this machine does not give the isolation level that was asked for")
    CALIBRATION_NOT_BUILT = _machine("the spin kernel does not build here")
    CALIBRATION_NOT_LOADED = _machine("a calibration process did not start")
    UNREADABLE = _machine("a file of the candidate's cannot be read")
    BUILD_FOLDER = _machine("the build's folder cannot be read or written")
    ARTIFACTS_UNREADABLE = _machine("the archive cannot be read")
    ARTIFACTS_UNWRITABLE = _machine("the archive cannot be written")
    INDEX_LOCKED = _machine("another run holds the index")
    INDEX_UNWRITABLE = _machine("the index cannot be written")
    BASELINE_UNWRITABLE = _machine("the baseline cannot be written there")
    REPORT_UNWRITABLE = _machine("a report or plot cannot be written there")
    SCHEMA_WRITE = _machine("a schema cannot be written there")
    STDOUT_UNWRITABLE = _machine("the result cannot be written to stdout")

    # ----------------------------------------------------------------- what is archived
    ATTEMPT_UNREADABLE = _file("the folder cannot be read as an attempt")
    BASELINE_UNREADABLE = _file("the baseline's file cannot be read")
    BASELINE_INVALID = _file("the file is not a baseline")
    BASELINE_VERSION = _file("the baseline is of another schema version than is read here")
    BASELINE_MANIFEST = _file("the manifest in the baseline is no valid one")
    BASELINE_SOURCES = _file("the baseline holds a source whose name cannot be written")
    PROFILE_UNREADABLE = _file("the folder cannot be read as a profile")
    COMPARISON_UNREADABLE = _file("the timed comparison cannot be read")
    ARCHIVE_TAMPERED = _tampered("files were changed by something other than mini-kv while it ran")
    ATTEMPT_CHANGED = _tampered("the attempt is not what was archived")
    ATTEMPT_CONTRADICTED = _tampered("the attempt contradicts its own records")
    ATTEMPT_MISPLACED = _tampered("the attempt lies where another one belongs")
    FILE_ADDED = _tampered("a file was not there when the attempt ended")
    FILE_CHANGED = _tampered("a file of the attempt was changed")
    FILE_MISSING = _tampered("a file of the attempt is missing")
    INDEX_CHANGED = _tampered("the index says of an attempt what is not so")
    BASELINE_CHANGED = _tampered("the baseline was edited: its parts do not match their hashes")
    BASELINE_CONTRADICTED = _tampered("the baseline contradicts itself")
    PROFILE_TAMPERED = _tampered("the profile does not hold what it promises")
    ATTEMPT_GONE = _lacking("an indexed attempt is gone, so it is left out")
    INDEX_INCOMPLETE = _lacking("the index lacks attempts that the folders hold, which were read there")
    INDEX_MISSING = _lacking("the index is missing; the folders were read")
    INDEX_RECREATED = _lacking("the index was missing and was made again from the folders")
    INDEX_UNUSABLE = _lacking("the index cannot be made, read or written")
    ONE_NAME_TWO_FOLDERS = _remark("a ranked candidate's name was that of a candidate in another folder")
    OTHER_CODE = _remark("earlier attempts of a ranked candidate's version are of other code")

    # ----------------------------------------------------------------- mini-kv's own
    INTERNAL = _own("mini-kv itself failed; the traceback is the evidence")
    ARCHIVE_NAME = _own("a file cannot be added to the archive under that name")
    ATTEMPT_ID = _own("no free id was found for an attempt")
    COMPARISON_ID = _own("no free id was found for a comparison")
    PROFILE_ID = _own("no free id was found for a profile")
    ATTEMPT_NOT_FINISHED = _own("an attempt ended without its record")
    ATTEMPT_MISMATCH = _own("an attempt cannot be finished with another one's record")
    BUILD = _own("a build that passed names no library")
    UNSAFE_DELETE = _own("a folder to delete does not lie where it must")
    ORDER = _own("a candidate was asked before its library was named")
    PROTOCOL = _own("a worker of mini-kv's answered something else than it was asked")
    WORKER_LOST = _own("a worker did not start")
    ORACLE_LOST = _own("the oracle was lost while it answered")
    ORACLE = _own("the oracle cannot make a case again")
    NOT_AUDITED = _own("the oracle could not audit a case")
    REFERENCE_NOT_TIMED = _own("the reference cannot be timed")
    COPIES_NOT_TIMED = _own("the oracle cannot copy the inputs of a case")
    TIMER_FAILED = _own("the timer could not measure itself")
    CALIBRATION_LOST = _own("a spin of the calibration gave no time")


_entered.clear()  # the members hold them now


def while_loading(lost: str) -> str:
    """Return the code of a worker that was lost, for ``lost``, while it opened a candidate's library."""
    return Code.named(f"LOAD_{lost}") or lost


def in_confirmation(trouble: Code) -> Code:
    """Return the code of a second batch that cannot be judged for ``trouble``."""
    return Code[f"CONFIRMATION_{trouble}"]


def of_check(name: str) -> Code:
    """Return the code of a contract check that failed, such as ``opcheck.test_schema``."""
    return Code[name.replace(".", "_").upper()]


def of_ids(noun: str) -> Code:
    """Return the code of an archive that found no free id for its ``noun``, such as an attempt."""
    return Code[f"{noun.upper()}_ID"]
