"""What of a module is merged, and where its elements are."""

import ctypes

import pytest
import torch
from torch import nn

from solo import _C, model
from solo.errors import InvalidArgument, NotSupported
from solo.model import Model


def roles(taken: Model) -> dict[str, int]:
    return {name: role for name, _, _, role in taken.layout()}


def test_matrices_go_through_the_codec_and_small_tensors_stay_exact() -> None:
    taken = Model([nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 2))])
    assert roles(taken) == {
        "0.weight": _C.PARAM,
        "0.bias": _C.EXACT,
        "1.weight": _C.EXACT,
        "1.bias": _C.EXACT,
        "2.weight": _C.EXACT,
        "2.bias": _C.EXACT,
    }


def test_float_buffers_are_averaged_integer_ones_take_the_maximum() -> None:
    assert roles(Model([nn.BatchNorm1d(4)])) == {
        "weight": _C.EXACT,
        "bias": _C.EXACT,
        "running_mean": _C.MEAN,
        "running_var": _C.MEAN,
        "num_batches_tracked": _C.MAX,
    }


def test_buffers_that_are_not_saved_are_left_alone() -> None:
    module = nn.Linear(2, 2)
    module.register_buffer("cache", torch.zeros(3), persistent=False)
    assert "cache" not in roles(Model([module]))


def test_tied_parameters_are_merged_once() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = module[0].weight
    assert list(roles(Model([module]))) == ["0.weight", "0.bias", "1.bias"]


def test_modules_that_share_parameters_hold_them_once() -> None:
    shared = nn.Linear(4, 4)
    taken = Model([nn.Sequential(shared), nn.Sequential(shared, nn.Linear(4, 1))])
    assert list(roles(taken)) == ["0.0.weight", "0.0.bias", "1.1.weight", "1.1.bias"]


def test_wrappers_do_not_change_names() -> None:
    assert model.plain("module._orig_mod.layer.weight") == "layer.weight"
    compiled = torch.compile(nn.Linear(3, 3), backend="eager")
    assert list(roles(Model([compiled]))) == ["weight", "bias"]


def test_frozen_parameters_are_part_of_the_model() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[0].requires_grad_(False)
    assert set(roles(Model([module]))) == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_a_large_frozen_base_is_left_out_but_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "FROZEN_BYTES_MAX", 1000)

    def build(seed: int) -> Model:
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 1))
        module[0].requires_grad_(False)
        return Model([module])

    first, same, other = build(1), build(1), build(2)
    assert len(first.layout()) == 2
    assert first.layout() == same.layout() != other.layout()
    assert "frozen" in first.layout()[0][0]
    first.check()
    first.modules[0].requires_grad_(True)
    with pytest.raises(InvalidArgument, match=r"0\.weight was frozen"):
        first.check()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types_are_given_as_they_are(dtype: torch.dtype) -> None:
    module = nn.Linear(2, 2).to(dtype)
    code = {torch.float16: _C.F16, torch.bfloat16: _C.BF16, torch.float64: _C.F64}[dtype]
    assert {row[2] for row in Model([module]).layout()} == {code}


def test_contiguous_tensors_are_used_in_place() -> None:
    module = nn.Linear(3, 3)
    addresses, _ = Model([module]).stage()
    assert addresses == [module.weight.data_ptr(), module.bias.data_ptr()]


def test_a_script_s_default_device_is_not_that_of_the_copies() -> None:
    module = nn.Linear(3, 2)
    module.weight.data = module.weight.data.t().contiguous().t()
    with torch.device("meta"):
        _, owners = Model([module]).stage()
    assert torch.equal(owners[0], module.weight)


def test_others_go_through_a_copy_in_logical_order() -> None:
    module = nn.Conv2d(2, 3, 2, bias=False).to(memory_format=torch.channels_last)
    before = module.weight.detach().clone()
    taken = Model([module])
    [address], _keep = taken.stage()
    assert address != module.weight.data_ptr()
    seen = (ctypes.c_float * before.numel()).from_address(address)
    assert torch.equal(torch.tensor(list(seen)).view(before.shape), before)
    seen[0] = 42.0
    taken.unstage()
    assert module.weight[0, 0, 0, 0].item() == 42.0
    assert module.weight.stride() == before.to(memory_format=torch.channels_last).stride()


def test_complex_parameters_are_pairs_of_floats() -> None:
    module = nn.ParameterDict({"w": nn.Parameter(torch.ones(3, dtype=torch.complex64))})
    [row] = Model([module]).layout()
    assert row[1] == 6 and row[2] == _C.F32


def test_a_single_scalar_is_a_model_and_thousands_of_tensors_are_one_too() -> None:
    scalar = nn.ParameterDict({"w": nn.Parameter(torch.tensor(1.0))})
    assert Model([scalar]).layout() == [("w", 1, _C.F32, _C.EXACT)]
    many = nn.ParameterList(nn.Parameter(torch.zeros(2)) for _ in range(5000))
    assert len(Model([many]).stage()[0]) == 5000


def test_a_model_without_parameters_is_an_error() -> None:
    with pytest.raises(InvalidArgument, match="no parameters"):
        Model([nn.ReLU()])


def test_a_parameter_that_was_replaced_is_named() -> None:
    module = nn.Linear(2, 2)
    taken = Model([module])
    module.weight = nn.Parameter(torch.zeros(2, 2))
    with pytest.raises(InvalidArgument, match="weight was replaced"):
        taken.stage()


def test_a_parameter_of_another_type_or_shape_is_named() -> None:
    module = nn.Linear(2, 2)
    taken = Model([module])
    module.half()
    with pytest.raises(InvalidArgument, match=r"weight was torch\.float32"):
        taken.stage()


def test_a_layer_that_was_added_is_noticed() -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    taken = Model([module])
    module.append(nn.Linear(2, 2))
    with pytest.raises(InvalidArgument, match="changed after solo took it over"):
        taken.stage()


def test_a_buffer_may_be_replaced_by_one_like_it() -> None:
    module = nn.BatchNorm1d(2)
    taken = Model([module])
    module.running_mean = torch.full((2,), 5.0)
    addresses, _ = taken.stage()
    assert module.running_mean.data_ptr() in addresses


def test_a_module_without_values_yet_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no values yet"):
        Model([nn.LazyLinear(3)])
    with pytest.raises(InvalidArgument, match="no values yet"):
        Model([nn.Linear(2, 2, device="meta")])


def test_a_type_that_cannot_be_merged_is_named() -> None:
    module = nn.Linear(2, 2)
    module.register_buffer("odd", torch.zeros(2, dtype=torch.float8_e4m3fn))
    with pytest.raises(NotSupported, match=r"odd is torch\.float8_e4m3fn"):
        Model([module])
