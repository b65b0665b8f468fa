"""Look at every picture that a test makes: its words must stand out from their background."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from txlib.plots.picture import Picture, contrast

LEAST = 4.5  # WCAG 2.2, level AA, for text of ordinary size


def poor_words(picture: Picture) -> list[str]:
    """The words of a picture with too little contrast to the color that fills most of the place behind them."""
    canvas = FigureCanvasAgg(picture.figure)
    canvas.draw()
    picture.figure.set_layout_engine("none")  # everything stays where it is now
    canvas.draw()
    off = [axis for axes in picture.axes if not axes.axison for axis in (axes.xaxis, axes.yaxis)]
    hidden = {text for axis in off for text in axis.findobj(Text)}
    words = [text for text in picture.figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    words = [text for text in words if text not in hidden]
    shown = [(text, text.get_window_extent(canvas.get_renderer())) for text in words]
    for text in words:
        text.set_alpha(0.0)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3] @ (65536, 256, 1)  # (row, column): colors, without words
    for text in words:
        text.set_alpha(None)
    poor = []
    for text, box in shown:
        top, bottom = (int(len(pixels) - edge) for edge in (box.y1, box.y0))
        place = pixels[max(top, 0) : bottom + 1, max(int(box.x0), 0) : int(box.x1) + 1]
        if not place.size:
            continue  # beside the picture: cut off, or a tick out of range
        colors, counts = np.unique(place, return_counts=True)
        ground = f"#{colors[counts.argmax()]:06x}"
        if (reached := contrast(text.get_color(), ground)) < LEAST:
            poor.append(f"{text.get_text()!r} in {text.get_color()}: {reached:.1f} to 1")
    return poor


@pytest.fixture(autouse=True)
def words_stand_out(monkeypatch):
    made, create = [], Picture.__init__
    monkeypatch.setattr(
        Picture, "__init__", lambda self, *args, **options: (create(self, *args, **options), made.append(self))[0]
    )
    yield
    assert [poor for picture in made for poor in poor_words(picture)] == []
