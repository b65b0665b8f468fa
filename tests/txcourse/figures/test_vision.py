"""A picture is drawn with its patches, their tokens, and what is made of them."""

import torch

from txcourse import figures


def test_patches_are_cut_from_the_picture_where_their_frames_are():
    picture = torch.arange(48.0).view(8, 6) / 47
    drawn = figures.vision_transformer(picture, 2, "a cat", blocks=3, title="A title", alt="A description")
    (axes,) = drawn.axes
    assert axes.get_title(loc="left") == "A title" and drawn.alt == "A description"
    texts = [text.get_text() for text in axes.texts]
    assert {"12 patches", "a cat", "class", "position 0"} <= set(texts) and any("3 blocks" in text for text in texts)
    whole, *parts = (torch.as_tensor(image.get_array()) for image in axes.images)
    assert whole.equal(picture)
    numbers = [int(text.removeprefix("position ")) for text in texts if text.startswith("position ")][1:]
    for number, part in zip(numbers, parts, strict=True):
        row, column = divmod(number - 1, 3)
        assert part.equal(picture[2 * row : 2 * row + 2, 2 * column : 2 * column + 2])
