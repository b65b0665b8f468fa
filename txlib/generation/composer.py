"""Notes in, more notes out: chorales continued, and melodies harmonised."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from txlib.generation.config import GenerationConfig
from txlib.generation.decoding import stream
from txlib.music.grid import BEGIN, END, HOLD, REST_TOKEN, GridTokenizer
from txlib.music.piece import Piece


class Composer:
    """A trained Music Transformer.

    Whatever the model thinks, each voice gets notes within its range only, and nothing is held that did not begin.

    Raises:
        ValueError: when the model does not write music on this grid.
    """

    def __init__(self, model: Any):
        self.grid = GridTokenizer()
        voices, vocab_size = getattr(model.config, "voices", None), model.config.vocab_size
        if (voices, vocab_size) != (self.grid.voices, len(self.grid)):
            raise ValueError(
                f"this {type(model).__name__} has voices={voices} and vocab_size={vocab_size}, and the grid "
                f"{self.grid.voices} and {len(self.grid)}; give a model of `txlib train music`"
            )
        self.model = model.eval()
        self.singable = self.grid.singable()  # (voice, vocab)

    def continue_(
        self,
        primer: Piece | None,
        steps: int,
        config: GenerationConfig | None = None,
        *,
        may_end: bool = False,
        **options: Any,
    ) -> Piece:
        """Return the primer and at most `steps` new steps.

        Args:
            primer: how the piece begins; None: the model begins it.
            config: how to draw, and the seed; by default the likeliest tokens, which soon repeat themselves.
            may_end: let the model end the piece before that.
            options: of `GenerationConfig`, to change some of the config's.

        Raises:
            ValueError: when the primer is empty or out of range, or steps is below 1.
        """
        if primer is not None and not len(primer):
            raise ValueError("the primer is empty; give at least one step, or none to let the model begin")
        if steps < 1:
            raise ValueError(f"steps={steps} must be at least 1")
        prompt = [] if primer is None else self.grid.encode(primer, special_tokens=False)
        config = GenerationConfig.of(config, options)
        return self.write(prompt, [[None] * self.grid.voices] * steps, config, may_end)

    def harmonise(
        self,
        melody: Piece,
        config: GenerationConfig | None = None,
        *,
        fixed_voices: Sequence[int] = (0,),
        **options: Any,
    ) -> Piece:
        """Add the other voices step by step: the model does not know what the melody does next.

        Args:
            melody: four voices, of which only the fixed ones are read; or a soprano alone.
            config, options: as in `continue_`.
            fixed_voices: the voices that stay as they are, counted from the highest, 0.

        Raises:
            ValueError: when the melody is empty or out of range, or there is no such voice.
        """
        voices = self.grid.voices
        if not len(melody):
            raise ValueError("the melody is empty; give at least one step")
        if not fixed_voices or not all(0 <= voice < voices for voice in fixed_voices):
            raise ValueError(
                f"fixed_voices={tuple(fixed_voices)} must name voices from 0 to {voices - 1}, at least one"
            )
        if melody.pitch.shape[1] == 1:
            fill = torch.zeros(len(melody), voices - 1)
            melody = Piece(torch.cat([melody.pitch, fill.long()], 1), torch.cat([melody.onset, fill.bool()], 1))
        fixed = torch.tensor([voice in fixed_voices for voice in range(voices)])
        melody = Piece(melody.pitch * fixed, melody.onset & fixed)
        tokens = torch.tensor(self.grid.encode(melody, special_tokens=False)).view(-1, voices).tolist()
        steps = [[token if voice in fixed_voices else None for voice, token in enumerate(row)] for row in tokens]
        return self.write([], steps, GenerationConfig.of(config, options), may_end=False)

    def write(
        self,
        prompt: list[int],
        steps: Sequence[Sequence[int | None]],
        config: GenerationConfig,
        may_end: bool,
    ) -> Piece:
        """Continue the prompt by one step for each row of `steps`, where None leaves the choice to the model.

        When the context is full, its older half is forgotten, by whole steps.
        """
        voices, context = self.grid.voices, self.model.config.max_length
        ids, before = [BEGIN] * voices + prompt, voices + len(prompt)
        total = before + len(steps) * voices
        while len(ids) < total and ids[-1] != END:
            kept = ids if len(ids) < context else ids[-(context // 2 // voices or 1) * voices :]

            def allow(written: list[list[int]], so_far: list[int] = ids) -> Bool[Tensor, "1 vocab"]:
                text = so_far + written[0]
                step, voice = divmod(len(text) - before, voices)
                return self.allowed(text, steps[step][voice], may_end)[None]

            for (token,) in stream(
                self.model,
                [kept],
                config=config,
                max_new_tokens=min(context - len(kept), total - len(ids)),
                eos_id=END,
                seed=None if config.seed is None else config.seed + len(ids),
                allow=allow,
            ):
                ids = [*ids, int(token)]  # type: ignore[arg-type]  # one text: a token at each step, until it ends
        return self.grid.decode(ids)

    def allowed(self, ids: list[int], fixed: int | None, may_end: bool) -> Bool[Tensor, "vocab"]:
        """Return which tokens may come after these; `fixed` is the only one if it is given."""
        voice = len(ids) % self.grid.voices
        if fixed is not None:
            allowed = torch.zeros(len(self.grid), dtype=torch.bool)
            allowed[fixed] = True
            return allowed
        allowed = self.singable[voice].clone()
        if ids[-self.grid.voices] in (BEGIN, REST_TOKEN):
            allowed[HOLD] = False
        if may_end and voice == 0 and ids[-1] != BEGIN:
            allowed[END] = True
        return allowed
