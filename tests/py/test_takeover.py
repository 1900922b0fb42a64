"""Finding the model of a script that wraps nothing."""

import torch
from torch import nn

from solo.takeover import find_owners


def test_the_outermost_module_owns_the_parameters() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
            self.head = nn.Linear(2, 1)

    net = Net()
    owners, strays = find_owners(net.head.parameters())
    assert owners == [net] and strays == []


def test_several_models_come_in_the_order_of_their_parameters() -> None:
    generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    owners, _ = find_owners([*critic.parameters(), *generator.parameters()])
    assert owners == [critic, generator]


def test_a_view_of_a_model_does_not_stand_for_it() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    view = nn.Sequential(net[0])
    owners, _ = find_owners(net.parameters())
    assert owners == [net] and view is not net


def test_a_compiled_model_is_one_model() -> None:
    net = nn.Linear(2, 2)
    compiled = torch.compile(net, backend="eager")
    owners, _ = find_owners(net.parameters())
    assert owners == [compiled]


def test_parameters_of_no_module_are_given_back() -> None:
    net, temperature = nn.Linear(2, 2), nn.Parameter(torch.ones(1))
    owners, strays = find_owners([*net.parameters(), temperature])
    assert owners == [net]
    assert len(strays) == 1 and strays[0] is temperature
