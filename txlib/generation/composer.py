"""Notes in, more notes out: chorales continued, and melodies harmonised."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from txlib.generation.sampling import Sampling, stream
from txlib.music.grid import BEGIN, END, HOLD, REST_TOKEN, GridTokenizer
from txlib.music.piece import RANGES, Piece, Range


class Composer:
    """A trained Music Transformer.

    Whatever the model thinks, each voice gets notes of its own range only, and nothing is held that did not begin.

    Args:
        ranges: lowest and highest pitch of each voice, where they are to be narrower than Bach's. They bind what is
            written, not what is given.

    Raises:
        ValueError: when the model does not write music on this grid, or there are not as many ranges as voices.
    """

    def __init__(self, model: Any, ranges: Sequence[Range] = RANGES):
        self.grid = GridTokenizer()
        known = getattr(model.config, "voices", None), model.config.vocab_size
        if known != (self.grid.voices, len(self.grid)):
            raise ValueError(
                f"this {type(model).__name__} has voices={known[0]} and vocab_size={known[1]}, and the grid "
                f"{self.grid.voices} and {len(self.grid)}; give a model of `txlib train music`"
            )
        self.model = model.eval()
        self.singable = self.grid.singable(ranges)  # (voice, vocab)

    def go_on(
        self,
        primer: Piece | None,
        steps: int,
        *,
        sampling: Sampling | None = None,
        seed: int | None = None,
        may_end: bool = False,
    ) -> Piece:
        """The primer and at most `steps` new steps.

        Args:
            primer: how the piece begins; None: the model begins it.
            sampling: how to draw; None is greedy, which soon repeats itself.
            may_end: let the model end the piece before that.

        Raises:
            ValueError: when the primer is empty or out of range, or steps is below 1.
        """
        if primer is not None and not len(primer):
            raise ValueError("the primer is empty; give at least one step, or none to let the model begin")
        if steps < 1:
            raise ValueError(f"steps={steps} must be at least 1")
        begun = [] if primer is None else self.grid.encode(primer, special_tokens=False)
        return self.write(begun, [[None] * self.grid.voices] * steps, sampling, seed, may_end)

    def harmonise(
        self,
        melody: Piece,
        *,
        given: Sequence[int] = (0,),
        sampling: Sampling | None = None,
        seed: int | None = None,
    ) -> Piece:
        """The other voices to those that are given, step by step: the model does not know what the melody does next.

        Args:
            melody: four voices, of which those that are not given are not read; or a soprano alone.
            given: the voices that stay as they are, counted from the highest, 0.

        Raises:
            ValueError: when the melody is empty or out of range, or no such voice is there.
        """
        voices = self.grid.voices
        if not len(melody):
            raise ValueError("the melody is empty; give at least one step")
        if not given or not all(0 <= voice < voices for voice in given):
            raise ValueError(f"given={tuple(given)} must name voices from 0 to {voices - 1}, at least one")
        if melody.pitch.shape[1] == 1:
            fill = torch.zeros(len(melody), voices - 1)
            melody = Piece(torch.cat([melody.pitch, fill.long()], 1), torch.cat([melody.onset, fill.bool()], 1))
        only_given = torch.tensor([voice in given for voice in range(voices)])
        melody = Piece(melody.pitch * only_given, melody.onset & only_given)
        tokens = torch.tensor(self.grid.encode(melody, special_tokens=False)).view(-1, voices).tolist()
        wanted = [[token if voice in given else None for voice, token in enumerate(row)] for row in tokens]
        return self.write([], wanted, sampling, seed, may_end=False)

    def write(
        self,
        begun: list[int],
        wanted: Sequence[Sequence[int | None]],
        sampling: Sampling | None,
        seed: int | None,
        may_end: bool,
    ) -> Piece:
        """Go on after these tokens, one step for each row of `wanted`, where None leaves the choice to the model.

        When the context is full, its older half is forgotten, by whole steps.
        """
        voices, context = self.grid.voices, self.model.config.max_length
        ids, before = [BEGIN] * voices + begun, voices + len(begun)
        total = before + len(wanted) * voices
        while len(ids) < total and ids[-1] != END:
            kept = ids if len(ids) < context else ids[-(context // 2 // voices or 1) * voices :]

            def allow(written: list[list[int]], so_far: list[int] = ids) -> Bool[Tensor, "1 vocab"]:
                text = so_far + written[0]
                step, voice = divmod(len(text) - before, voices)
                return self.allowed(text, wanted[step][voice], may_end)[None]

            for (token,) in stream(
                self.model,
                [kept],
                max_new_tokens=min(context - len(kept), total - len(ids)),
                sampling=sampling,
                eos_id=END,
                seed=None if seed is None else seed + len(ids),
                allow=allow,
            ):
                ids = [*ids, int(token)]  # type: ignore[arg-type]  # one text: a token at each step, until it ends
        return self.grid.decode(ids)

    def allowed(self, ids: list[int], wanted: int | None, may_end: bool) -> Bool[Tensor, "vocab"]:
        """The tokens that may come after these."""
        voice = len(ids) % self.grid.voices
        if wanted is not None:
            allowed = torch.zeros(len(self.grid), dtype=torch.bool)
            allowed[wanted] = True
            return allowed
        allowed = self.singable[voice].clone()
        if ids[-self.grid.voices] in (BEGIN, REST_TOKEN):
            allowed[HOLD] = False
        if may_end and voice == 0 and ids[-1] != BEGIN:
            allowed[END] = True
        return allowed
