"""Parameters, modules and optimizers made of tensors that are still in their file: what PyTorch's own tests ask of ordinary ones.

USES is the table: each line runs once with an ordinary tensor and once with one in a file, and has to give the same. A new use is one line.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
library = pytest.importorskip("safetensors.torch", reason="the safetensors library is not installed")

from torch import nn  # noqa: E402

from penstock._patch import safe_open as _door_open  # noqa: E402
from penstock._patch import tensor_in_file as _in_file  # noqa: E402
from penstock._patch.tensor_in_file import ParameterInFile, TensorInFile  # noqa: E402
from penstock.safetensors import install  # noqa: E402

ROWS, COLUMNS = 96, 96  # more than the 32 KiB from which on tensors stay in their file
VALUES = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1))
INPUT = torch.randn(4, COLUMNS, generator=torch.Generator().manual_seed(2))


@pytest.fixture
def in_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """Makes a tensor that is still in its file, as on a machine with a GPU."""
    library.save_file({"w": VALUES}, tmp_path / "file")
    monkeypatch.setattr(_in_file, "gpus_may_be_used", lambda: True)
    monkeypatch.setattr(_door_open, "_known_gpu", lambda device: torch.device("cpu"))
    with install():
        yield lambda: library.load_file(tmp_path / "file")["w"]


class Derived(nn.Parameter):
    """As engines and quantizers have them."""

    def __new__(cls, data: Any, scale: float = 1.0, **named: Any) -> Any:
        made = super().__new__(cls, data, requires_grad=False)
        made.scale = scale
        return made

    def __init__(self, data: Any, scale: float = 1.0, **named: Any) -> None:
        self.initialized = True


class Made(nn.Parameter):
    """Makes itself below torch.nn.Parameter."""

    def __new__(cls, data: Any) -> Any:
        return torch.Tensor._make_subclass(cls, data, False)


class Flagged(torch.Tensor):
    pass


def linear(weight: Any, **named: Any) -> Any:
    module = nn.Linear(COLUMNS, ROWS, bias=False)
    module.weight = nn.Parameter(weight, **named)
    return module


def tied(weight: Any) -> Any:
    module = nn.Sequential(nn.Linear(COLUMNS, ROWS, bias=False), nn.Linear(COLUMNS, ROWS, bias=False))
    module[0].weight = nn.Parameter(weight)
    module[1].weight = module[0].weight
    return module


def stepped(optimizer: Callable[[Any], Any], module: Any) -> Any:
    made = optimizer(module.parameters())
    for _ in range(2):
        made.zero_grad()
        module(INPUT).square().sum().backward()
        made.step()
    return [*module.parameters()], len(made.param_groups[0]["params"])


def loaded(module: Any, state: Any, **named: Any) -> Any:
    module.load_state_dict(state, **named)
    return module


def through_bytes(value: Any, save: Any, load: Any) -> Any:
    file = io.BytesIO()
    save(value, file)
    file.seek(0)
    return load(file)


def registered(weight: Any) -> Any:
    module = nn.Module()
    module.register_parameter("w", nn.Parameter(weight, requires_grad=False))
    module.register_buffer("b", weight)
    module.p = nn.Parameter(module.w)
    return module


def parametrized(weight: Any) -> Any:
    module = linear(weight)
    torch.nn.utils.parametrizations.weight_norm(module)
    return module(INPUT)


def replaced(parameter: Any) -> Any:
    parameter.data = parameter.data * 2
    return parameter


def pruned(weight: Any) -> Any:
    from torch.nn.utils import prune

    return prune.l1_unstructured(linear(weight), "weight", amount=0.5).weight


def hooked(weight: Any) -> Any:
    parameter, seen = nn.Parameter(weight), []
    parameter.register_hook(lambda grad: seen.append(grad.clone()))
    (parameter * 3).sum().backward()
    return seen


def with_attributes(weight: Any, use: Callable[[Any], Any]) -> Any:
    parameter = nn.Parameter(weight, requires_grad=False)
    parameter.of_the_program = [1, 2]
    found = use(parameter)
    return found, getattr(found, "of_the_program", None)


def both(*found: Any) -> Any:
    return found


P = nn.Parameter
USES: dict[str, Callable[[Any], Any]] = {
    # torch.nn.Parameter
    "Parameter": lambda t: P(t),
    "Parameter without gradient": lambda t: P(t, requires_grad=False),
    "Parameter of a parameter": lambda t: P(P(t)),
    "Parameter of a parameter without gradient": lambda t: P(P(t), requires_grad=False),
    "Parameter of a parameter of a parameter": lambda t: P(P(P(t, False)), False),
    "Parameter of data": lambda t: P(P(t).data),
    "Parameter of detach": lambda t: P(P(t).detach()),
    "Parameter of a view": lambda t: P(t[3:90]),
    "Parameter of a clone": lambda t: P(t.clone()),
    "Parameter after a use": lambda t: (t.sum(), P(t))[1],
    "Parameter of a used parameter": lambda t: (lambda p: (p.sum(), P(p))[1])(P(t)),
    "Parameter shares memory": lambda t: (lambda p, q: (q.data.zero_(), p)[1])(*(lambda p: (p, P(p)))(P(t))),
    "is a Parameter": lambda t: (isinstance(P(t), P), isinstance(P(t).detach(), P), isinstance(P(P(t)), P), isinstance(t, P)),
    "is a Tensor": lambda t: (isinstance(P(t), torch.Tensor), torch.is_tensor(P(t)), isinstance(P(t), nn.Buffer)),
    "leaf and gradient": lambda t: (lambda p: (p.is_leaf, p.requires_grad, p.grad, p.grad_fn))(P(P(t))),
    "requires_grad_": lambda t: (lambda p: (p.requires_grad_(False).requires_grad, p.requires_grad_().requires_grad))(P(P(t))),
    "derived class": lambda t: Derived(t, scale=2.0),
    "derived class of a parameter": lambda t: Derived(P(t), scale=2.0),
    "derived class keeps what it has": lambda t: (lambda p: (type(p).__name__, p.scale, p.initialized, p.requires_grad))(Derived(t, scale=3.0)),
    "derived class made below": lambda t: Made(t),
    "derived class made below of a parameter": lambda t: Made(P(t)),
    "as_subclass": lambda t: P(t).as_subclass(Flagged),
    "class of a parameter makes another": lambda t: type(P(t))(torch.ones(3), requires_grad=False),
    "Buffer": lambda t: nn.Buffer(t),
    "Buffer of a parameter": lambda t: nn.Buffer(P(t, False)),
    "repr": lambda t: (repr(P(t)), str(P(P(t)))),
    "attributes": lambda t: with_attributes(t, lambda p: p),
    "attributes stay after a use": lambda t: with_attributes(t, lambda p: (p.sum(), p)[1]),
    "a Parameter of one with attributes": lambda t: with_attributes(t, lambda p: P(p, False)),
    "hook": hooked,
    "data": lambda t: replaced(P(t)),
    "ParameterList": lambda t: [*nn.ParameterList([t, P(t), P(P(t))])],
    "ParameterDict": lambda t: dict(nn.ParameterDict({"a": t, "b": P(t)}).items()),
    # copies
    "deepcopy": lambda t: copy.deepcopy(P(t)),
    "deepcopy of a parameter of a parameter": lambda t: copy.deepcopy(P(P(t, False), False)),
    "deepcopy keeps what is one": lambda t: (lambda a, b: a is b)(*copy.deepcopy((lambda p: [p, p])(P(P(t))))),
    "deepcopy of attributes": lambda t: with_attributes(t, copy.deepcopy),
    "copy": lambda t: copy.copy(P(t, False)),
    "pickle": lambda t: pickle.loads(pickle.dumps(P(P(t)))),
    "pickle of attributes": lambda t: with_attributes(t, lambda p: pickle.loads(pickle.dumps(p))),
    "torch.save": lambda t: through_bytes({"p": P(P(t)), "t": t}, torch.save, torch.load),
    "torch.save of a module": lambda t: through_bytes(linear(P(t)).state_dict(), torch.save, torch.load),
    "deepcopy of a module": lambda t: copy.deepcopy(linear(P(t)))(INPUT),
    "deepcopy of a tied module": lambda t: (lambda m: (m[0].weight is m[1].weight, m(INPUT)))(copy.deepcopy(tied(P(t)))),
    "pickle of a module": lambda t: pickle.loads(pickle.dumps(linear(P(t))))(INPUT),
    "share_memory_": lambda t: linear(P(t)).share_memory()(INPUT),
    # torch.nn.Module
    "forward": lambda t: linear(P(t))(INPUT),
    "tied": lambda t: (lambda m: (len([*m.parameters()]), m(INPUT)))(tied(P(t))),
    "registered": lambda t: (lambda m: (m.w, m.b, m.p, sorted(m.state_dict()), [name for name, _ in m.named_parameters()]))(registered(t)),
    "state_dict": lambda t: dict(linear(P(t)).state_dict()),
    "state_dict keep_vars": lambda t: dict(linear(P(t)).state_dict(keep_vars=True)),
    "load_state_dict": lambda t: loaded(nn.Linear(COLUMNS, ROWS, bias=False), {"weight": t})(INPUT),
    "load_state_dict of parameters": lambda t: loaded(nn.Linear(COLUMNS, ROWS, bias=False), {"weight": P(P(t))})(INPUT),
    "load_state_dict assign": lambda t: loaded(nn.Linear(COLUMNS, ROWS, bias=False, device="meta"), {"weight": t}, assign=True).weight,
    "load_state_dict assign of parameters": lambda t: loaded(nn.Linear(COLUMNS, ROWS, bias=False, device="meta"), {"weight": P(t)}, assign=True).weight,
    "load_state_dict into it": lambda t: loaded(linear(P(t)), {"weight": torch.ones(ROWS, COLUMNS)}).weight,
    "swap_tensors": lambda t: (lambda p, q: (torch.utils.swap_tensors(p, q), p, q)[1:])(P(t), P(torch.ones(ROWS, COLUMNS))),
    "to a type": lambda t: linear(P(t)).to(torch.float64)(INPUT.double()),
    "half": lambda t: linear(P(t)).bfloat16().weight,
    "to the CPU": lambda t: linear(P(t)).cpu().weight,
    "to meta": lambda t: (lambda m: (m.weight.device.type, m.weight.requires_grad, type(m.weight)))(linear(P(t)).to("meta")),
    "to_empty": lambda t: linear(P(t)).to_empty(device="cpu").weight.shape,
    "requires_grad_ of a module": lambda t: [each.requires_grad for each in linear(P(t)).requires_grad_(False).parameters()],
    "zero_grad": lambda t: (lambda m: (m(INPUT).sum().backward(), m.zero_grad(), m.weight.grad)[2])(linear(P(t))),
    "functional_call": lambda t: torch.func.functional_call(nn.Linear(COLUMNS, ROWS, bias=False), {"weight": P(P(t))}, (INPUT,)),
    "weight_norm": lambda t: parametrized(P(t)),
    "prune": lambda t: pruned(P(t)),
    "init": lambda t: nn.init.constant_(P(P(t)), 3.0),
    "clip_grad_norm_": lambda t: (lambda m: (m(INPUT).sum().backward(), nn.utils.clip_grad_norm_(m.parameters(), 1.0), m.weight.grad)[1:])(linear(P(t))),
    "parameters_to_vector": lambda t: nn.utils.parameters_to_vector(tied(P(t)).parameters()),
    "embedding": lambda t: nn.Embedding.from_pretrained(P(t, False))(torch.tensor([3, 5])),
    "embedding tied to a head": lambda t: (lambda e, h: h(e(torch.tensor([3, 5]))))(*(lambda p: (nn.Embedding.from_pretrained(p, freeze=False), linear(p)))(P(t))),
    # compilers
    "compile": lambda t: (lambda m: (torch.compile(m, backend="eager", fullgraph=True)(INPUT).square().sum().backward(), m.weight.grad, m.weight))(linear(P(t))),
    "compile of a function": lambda t: torch.compile(lambda w: (w.T @ w, w.detach() + w.data), backend="eager", fullgraph=True)(P(P(t))),
    "compile of a tensor": lambda t: torch.compile(lambda w, x: (x @ w.T, w[3:50], w.shape), backend="eager", fullgraph=True)(t, INPUT),
    "compile that writes": lambda t: (torch.compile(lambda w: w.add_(1), backend="eager", fullgraph=True)(t), t, t[3:60]),
    "export": lambda t: torch.export.export(linear(P(t)), (INPUT,)).module()(INPUT),
    "jit.trace": lambda t: torch.jit.trace(linear(P(t)), INPUT)(INPUT),
    "jit.trace of a function": lambda t: torch.jit.trace(lambda x: x @ t.detach().T, INPUT)(INPUT),
    "jit.script": lambda t: torch.jit.script(linear(P(t)))(INPUT),
    "fx": lambda t: torch.fx.symbolic_trace(linear(P(t)))(INPUT),
    # torch.optim
    "SGD": lambda t: stepped(lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9), linear(P(t))),
    "Adam": lambda t: stepped(lambda p: torch.optim.Adam(p, lr=0.01), linear(P(t))),
    "AdamW foreach": lambda t: stepped(lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True), linear(P(P(t)))),
    "AdamW fused": lambda t: stepped(lambda p: torch.optim.AdamW(p, lr=0.01, fused=True), linear(P(P(t)))),
    "Adagrad": lambda t: stepped(lambda p: torch.optim.Adagrad(p, lr=0.01), tied(P(t))),
    "RMSprop of tied ones": lambda t: stepped(lambda p: torch.optim.RMSprop(p, lr=0.01), tied(P(P(t)))),
    "optimizer of a parameter": lambda t: (lambda p: (torch.optim.SGD([p], lr=0.1).param_groups[0]["params"][0] is p))(P(P(t))),
    "optimizer of a plain tensor": lambda t: (lambda t: (torch.optim.SGD([t], lr=0.1).param_groups[0]["params"][0] is t))(t.requires_grad_()),
    "state of an optimizer": lambda t: (lambda p, o: ((p * 2).sum().backward(), o.step(), copy.deepcopy(o.state_dict()))[2])(*(lambda p: (p, torch.optim.Adam([p], lr=0.1)))(P(P(t)))),
    "optimizer before a use": lambda t: (lambda p, o: ((p * 2).sum().backward(), o.step(), p)[2])(*(lambda p: (p, torch.optim.SGD([p], lr=0.1)))(P(P(t)))),
    "averaged model": lambda t: (lambda a: (a.update_parameters(linear(t.clone() * 3)), [*a.parameters()])[1])(torch.optim.swa_utils.AveragedModel(linear(P(t)))),
}


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, torch.Tensor):
        if not isinstance(found, torch.Tensor) or found.shape != expected.shape or found.requires_grad != expected.requires_grad:
            return False
        if isinstance(found, nn.Parameter) != isinstance(expected, nn.Parameter) or isinstance(found, nn.Buffer) != isinstance(expected, nn.Buffer):
            return False
        if type(found) not in (TensorInFile, ParameterInFile) and type(found) is not type(expected):
            return False
        return bool(torch.equal(found.detach(), expected.detach()))  # which makes it an ordinary one
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same(found[name], expected[name]) for name in expected)
    if isinstance(expected, (list, tuple)):
        return type(found) is type(expected) and len(found) == len(expected) and all(map(same, found, expected))
    return bool(found == expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("use", USES)
def test_a_use_gives_what_it_gives_with_an_ordinary_tensor(in_file: Callable[[], Any], use: str) -> None:
    tensor = in_file()
    assert type(tensor) is TensorInFile
    torch.manual_seed(7)
    expected = USES[use](VALUES.clone())
    torch.manual_seed(7)
    found = USES[use](tensor)
    assert same(found, expected), (found, expected)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_parameter_of_a_parameter_is_still_in_its_file(in_file: Callable[[], Any], times: int) -> None:
    parameter = in_file()
    for _ in range(times):
        parameter = nn.Parameter(parameter, requires_grad=False)
    assert type(parameter) is ParameterInFile and type(parameter.detach()) is TensorInFile
    assert torch.equal(parameter, VALUES) and type(parameter) is nn.Parameter
