"""Contract checks that need torch's own machinery, run in a candidate worker apart from numerics.

Every check takes the operator, argument sets on the device under test and whether the candidate
claims autograd, and returns one entry a question: ``None`` for kept, a sentence for broken.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence

import torch
from torch._subclasses.fake_tensor import UnsupportedOperatorException
from torch.autograd.gradcheck import GradcheckError

from mini_kv.core.rules.registration import no_fake
from mini_kv.worker.fake_results import symbolic_form, unlike_promised
from mini_kv.worker.gradients import GradientFault, carries_gradient, gradients_of, lacking
from mini_kv.worker.jacobians import wrong_derivative
from mini_kv.worker.storage import tensors_of

Operator = Callable[..., object]
Arguments = list[object]
Results = dict[str, str | None]
Check = Callable[[Operator, Sequence[Arguments], bool], Results]

_HOLD_CYCLES = 40_000_000  # about 20 ms on the GPUs of today: far longer than any host enqueue
_MESSAGE_LIMIT = 2000


def preload() -> None:
    """Import what the checks need and run one of them on a plain operator, so that caches are warm."""
    from torch._functorch import config

    warnings.simplefilter("ignore")
    # The pass that merges equal operations finds none in the graph of one call, and importing it brings all
    # of Inductor: a fifth of the time that a verdict on the GPU waits for this process.
    config.cse = False
    sample: Arguments = [torch.ones(2, requires_grad=True), torch.ones(2)]
    opcheck(torch.ops.aten.mul.Tensor, [sample], False)


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{type(error).__name__}: {text}"[:_MESSAGE_LIMIT]


def _guarded(action: Callable[[], str | None]) -> str | None:
    try:
        return action()
    except Exception as error:  # noqa: BLE001 - whatever is raised is the answer
        return _sentence(error)


def _guarded_fake(action: Callable[[], str | None], operator: Operator, arguments: Arguments) -> str | None:
    """Like :func:`_guarded`, for fake tensors: whatever takes them fails without a fake kernel."""
    answer = _guarded(action)
    return answer if answer is None else _without_fake(operator, arguments) or answer


def _without_fake(operator: Operator, arguments: Arguments) -> str | None:
    """Return the sentence about a fake kernel that is not there, the operator's own and no other's."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    if not isinstance(operator, torch._ops.OpOverload):
        return None
    if torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "Meta"):
        return None  # one that fails is named as if it were not there
    try:
        with FakeTensorMode() as mode:
            operator(*(mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for v in arguments))
    except UnsupportedOperatorException as error:
        return no_fake(operator.name()) if error.func is operator else None
    except Exception:  # noqa: BLE001 - there is one, and it fails in its own way
        return None
    return None


def _requiring_grad(arguments: Arguments) -> Arguments:
    return [
        value.detach().requires_grad_(True)
        if isinstance(value, torch.Tensor) and value.dtype.is_floating_point
        else value
        for value in arguments
    ]


def opcheck(operator: Operator, sets: Sequence[Arguments], autograd: bool) -> Results:
    """``torch.library.opcheck``: schema, autograd registration, FakeTensor, AOT dispatch (dynamic)."""
    arguments = _requiring_grad(sets[0]) if autograd else sets[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answers = torch.library.opcheck(operator, tuple(arguments), raise_exception=False)  # type: ignore[arg-type]
    return _told(answers, operator, arguments, autograd)


def opcheck_layout(operator: Operator, sets: Sequence[Arguments], autograd: bool) -> Results:
    """The two parts of ``opcheck`` that a layout of the inputs can break: schema and FakeTensor."""
    arguments = _requiring_grad(sets[0]) if autograd else sets[0]
    parts = ("test_schema", "test_faketensor")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answers = torch.library.opcheck(
            operator,  # type: ignore[arg-type]
            tuple(arguments),
            test_utils=parts,
            raise_exception=False,
        )
    return _told(answers, operator, arguments, autograd)


_FAKE_PARTS = ("test_faketensor", "test_aot_dispatch_dynamic")


def _told(answers: Mapping[str, object], operator: Operator, arguments: Arguments, autograd: bool) -> Results:
    """Put ``opcheck``'s answers into sentences: the cause of a failure, where it is known."""
    failed = {part: answer for part, answer in answers.items() if answer != "SUCCESS"}
    causes: dict[str, str | None] = {}
    if any(part in failed for part in _FAKE_PARTS):
        lacking_fake = _without_fake(operator, arguments)
        causes = dict.fromkeys(_FAKE_PARTS, lacking_fake)
        if autograd and lacking_fake is None and "test_aot_dispatch_dynamic" in failed:
            causes["test_aot_dispatch_dynamic"] = _backward_fault(operator, arguments)
    return {
        f"opcheck.{part}": (causes.get(part) or _failure_text(failed[part])) if part in failed else None
        for part in answers
    }


def _failure_text(answer: object) -> str:
    return _sentence(answer) if isinstance(answer, BaseException) else str(answer)[:_MESSAGE_LIMIT]


def _backward_fault(operator: Operator, arguments: Arguments) -> str | None:
    """Return what the operator's backward does that none may, in a plain call."""
    try:
        gradients_of(operator, arguments, "", strained=True)
    except GradientFault as fault:
        return str(fault)[:_MESSAGE_LIMIT]
    except Exception:  # noqa: BLE001 - not the backward, and told by whoever asked
        return None
    return None


def gradcheck(operator: Operator, sets: Sequence[Arguments], autograd: bool) -> Results:
    """``torch.autograd.gradcheck`` at float64 against central differences."""

    def run() -> str | None:
        inputs = [
            value.detach().to(torch.float64).requires_grad_(True)
            if isinstance(value, torch.Tensor) and value.dtype.is_floating_point
            else value
            for value in sets[0]
        ]
        if not any(map(carries_gradient, tensors_of(operator(*inputs)))):
            return lacking(operator)
        try:
            torch.autograd.gradcheck(operator, tuple(inputs), raise_exception=True)  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - whatever is raised is the answer
            fault = _backward_fault(operator, inputs)
            if fault is None and isinstance(error, GradcheckError):
                # Its own message is two matrices, whose rows and columns are left out in the middle.
                fault = wrong_derivative(operator, inputs)
            return fault or _sentence(error)
        return None

    return {"gradcheck": _guarded(run)}


def dynamic_shapes(operator: Operator, sets: Sequence[Arguments], autograd: bool) -> Results:
    """Compile with ``dynamic=True`` for several sizes: one graph, or the Meta function specialises."""
    graphs = 0

    def counting(module: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., object]:
        nonlocal graphs
        graphs += 1
        return module.forward

    def run() -> str | None:
        torch._dynamo.reset()
        compiled = torch.compile(operator, fullgraph=True, dynamic=True, backend=counting)
        for arguments in sets:
            traced, eager = tensors_of(compiled(*arguments)), tensors_of(operator(*arguments))
            for got, want in zip(traced, eager, strict=True):
                if not torch.equal(got, want):
                    return "the compiled call gives other values than the eager call"
        if graphs != 1:
            return (
                f"{len(sets)} sizes gave {graphs} graphs under torch.compile(dynamic=True); "
                "one is expected: the Meta function reads sizes as constants"
            )
        return None

    with torch.no_grad():
        return {"dynamic_shapes": _guarded_fake(run, operator, sets[0])}


def _settled(operator: Operator, arguments: Arguments) -> list[torch.Tensor]:
    """Call, and return copies of the outputs as they are once the whole device has come to rest.

    A copy made at once would hold what an unjoined stream had not written yet, and excuse it later.
    """
    outputs = tensors_of(operator(*arguments))
    torch.cuda.synchronize()
    return [output.clone() for output in outputs]


def fake_results(operator: Operator, sets: Sequence[Arguments], autograd: bool) -> Results:
    """Hold what a fake call promises against what a real one returns, for every argument set."""

    def run() -> str | None:
        known: set[object] = set()
        for arguments in sets:
            form = symbolic_form(arguments)
            new = form not in known
            known.add(form)
            if (wrong := unlike_promised(operator, arguments, symbols=new)) is not None:
                shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors_of(arguments))
                return f"{wrong} (inputs {shapes})"
        return None

    with torch.no_grad():
        return {"fake_results": _guarded_fake(run, operator, sets[0])}


def current_stream(operator: Operator, sets: Sequence[Arguments], autograd: bool) -> Results:
    """Call on a side stream that a delay kernel holds; a call that leaves it reads stale inputs."""

    def run() -> str | None:
        real = sets[0]
        want = _settled(operator, real)
        stale = [torch.zeros_like(value) if isinstance(value, torch.Tensor) else value for value in real]
        operator(*stale)  # one call first, so that lazy set-up does not wait for the device later
        torch.cuda.synchronize()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.cuda._sleep(_HOLD_CYCLES)
            for target, source in zip(tensors_of(stale), tensors_of(real), strict=True):
                target.copy_(source)
            got = tensors_of(operator(*stale))
            waited = side.query()
            copies = [output.clone() for output in got]
        side.synchronize()
        if waited:
            return "the call waited for the device: it synchronises inside the operator"
        if not all(map(torch.equal, copies, want)):
            return "on a held side stream the call gives other values: it does not use the current stream"
        return None

    with torch.no_grad():
        return {"current_stream": _guarded(run)}


def graph_capture(operator: Operator, sets: Sequence[Arguments], autograd: bool) -> Results:
    """Capture one call in a CUDA graph, replay it on new inputs, compare bitwise with the eager call."""

    def run() -> str | None:
        real = sets[0]
        want = _settled(operator, real)
        static = [torch.ones_like(v) if isinstance(v, torch.Tensor) else v for v in real]
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            operator(*static)
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = tensors_of(operator(*static))
        for target, source in zip(tensors_of(static), tensors_of(real), strict=True):
            target.copy_(source)
        graph.replay()
        torch.cuda.synchronize()
        if not all(map(torch.equal, got, want)):
            return "a replayed CUDA graph of the call gives other values than the eager call"
        return None

    with torch.no_grad():
        return {"graph_capture": _guarded(run)}


def second_device(operator: Operator, sets: Sequence[Arguments], autograd: bool) -> Results:
    """Call with inputs on ``cuda:1`` while the current device is 0."""

    def run() -> str | None:
        want = [output.cpu() for output in _settled(operator, sets[0])]
        moved = [v.to("cuda:1") if isinstance(v, torch.Tensor) else v for v in sets[0]]
        got = tensors_of(operator(*moved))
        torch.cuda.synchronize(1)
        if any(output.device != torch.device("cuda", 1) for output in got):
            return "with inputs on cuda:1 the output is on another device"
        if not all(torch.equal(output.cpu(), other) for output, other in zip(got, want, strict=True)):
            return "on cuda:1 the call gives other values than on cuda:0"
        if torch.cuda.current_device() != 0:
            return "the call changed the current device and did not restore it"
        return None

    with torch.no_grad():
        return {"second_device": _guarded(run)}


CHECKS: dict[str, Check] = {
    "opcheck": opcheck,
    "opcheck_layout": opcheck_layout,
    "gradcheck": gradcheck,
    "dynamic_shapes": dynamic_shapes,
    "fake_results": fake_results,
    "current_stream": current_stream,
    "graph_capture": graph_capture,
    "second_device": second_device,
}
