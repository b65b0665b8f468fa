"""`check_mechanism`: whether a mechanism keeps the contract of `txlib.attention.mechanism`, tried on random numbers."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from txlib.attention.conformance_rules import RULES, Sizes, Subject, plain_block
from txlib.attention.mechanism import MechanismConfig, MechanismError


@dataclass(frozen=True)
class MechanismReport:
    """What `check_mechanism` or `check_mixer` found.

    kept: rules that hold wherever the mechanism refuses nothing; refused: what it said when it refused; skipped: rules
    that could not be tried, as it refuses all they need; exceptions: rules that were left out → the reason given.
    """

    name: str
    kept: tuple[str, ...]
    refused: tuple[str, ...]
    skipped: tuple[str, ...]
    exceptions: dict[str, str]

    def __str__(self) -> str:
        tried = len(self.kept) + len(self.skipped) + len(self.exceptions)
        lines = [f"{self.name} keeps {len(self.kept)} of {tried} rules"]
        lines += [f"  kept      {rule}" for rule in self.kept]
        lines += [f"  skipped   {rule}" for rule in self.skipped]
        lines += [f"  exception {rule}: {reason}" for rule, reason in self.exceptions.items()]
        return "\n".join(lines + [f"  refused   {words}" for words in self.refused])


def check_mechanism(
    mechanism: nn.Module | MechanismConfig,
    *,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 8,
    value_dim: int | None = None,
    length: int = 150,
    block: Any = None,
    exceptions: Mapping[str, str] | None = None,
) -> MechanismReport:
    """Try every rule of the contract of a mechanism; return which it keeps and what it refuses.

        print(check_mechanism(LinearConfig()))

    Args:
        mechanism: a module, which stays as it is, or a config.
        heads, kv_heads, head_dim, value_dim: the sizes of the queries, keys and values; value_dim is head_dim unless
            given.
        length: of the sequences; choose more than the blocks that the mechanism works in.
        block: the `BlockConfig` that a config is made for, of the same sizes; a plain one unless given.
        exceptions: rules that the mechanism may break → why it does.

    Raises:
        MechanismError: naming the broken rule, the numbers seen and what to do.
        TypeError: for neither a module nor a config.
        ValueError: for an exception to an unknown rule.
    """
    exceptions = checked_exceptions(exceptions, RULES)
    if not isinstance(mechanism, nn.Module | MechanismConfig):
        raise TypeError(f"check_mechanism takes a module or a MechanismConfig, got {mechanism!r}; give an instance")
    sizes = Sizes(heads, kv_heads, head_dim, head_dim if value_dim is None else value_dim, length)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        subject = Subject(mechanism, sizes, plain_block(sizes) if block is None else block)
        subject.note_refused_layers()
        kept = [rule for rule in RULES if rule not in exceptions and subject.keeps(rule)]
    skipped = [rule for rule in RULES if rule not in kept and rule not in exceptions]
    if not kept or "output shape" in skipped:
        raise MechanismError(f"{subject.name} refuses every call, so no rule can be tried: {subject.refused[0]}")
    return MechanismReport(subject.name, tuple(kept), tuple(subject.refused), tuple(skipped), exceptions)


def checked_exceptions(exceptions: Mapping[str, str] | None, rules: Collection[str]) -> dict[str, str]:
    """Return the exceptions.

    Raises:
        ValueError: for one to an unknown rule.
    """
    exceptions = dict(exceptions or {})
    unknown = [rule for rule in exceptions if rule not in rules]
    if unknown:
        raise ValueError(f"exceptions names the unknown rule {unknown[0]!r}; choose from {', '.join(map(repr, rules))}")
    return exceptions
