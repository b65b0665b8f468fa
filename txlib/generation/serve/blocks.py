"""Which blocks of a paged cache are free, and which hold a beginning that other texts have, too."""

from collections import OrderedDict


class BlockPool:
    """Counts how many texts have each block in their tables; a block that none has is free.

    A full block is remembered by name: a hash of its tokens and of all tokens before them, as the keys and values of a
    token depend on these. A text that begins with the same tokens takes it into its table instead of computing it
    again, also when it is free already. It is forgotten when it is taken for something else: the block that has been
    free for longest comes first.

    Args:
        blocks: how many there are.
    """

    def __init__(self, blocks: int):
        self.references = [0] * blocks
        self.free = OrderedDict.fromkeys(range(blocks))
        self.names: dict[int, bytes] = {}
        self.named: dict[bytes, int] = {}

    def take(self) -> int:
        """Return a free block, whose content is forgotten."""
        block, _ = self.free.popitem(last=False)
        self.named.pop(self.names.pop(block, b""), None)
        self.references[block] = 1
        return block

    def share(self, name: bytes) -> int | None:
        """Return the block of this name for one text more, if there is one."""
        block = self.named.get(name)
        if block is not None:
            self.free.pop(block, None)
            self.references[block] += 1
        return block

    def remember(self, block: int, name: bytes) -> None:
        """Name a block that is full."""
        if name not in self.named and block not in self.names:
            self.names[block], self.named[name] = name, block

    def release(self, table: list[int]) -> None:
        """Take back the blocks of a text; those at its end, which fewest texts share, are free first."""
        for block in reversed(table):
            self.references[block] -= 1
            if not self.references[block]:
                self.free[block] = None
        table.clear()

    def forget(self) -> None:
        """Remember no block any more."""
        self.names.clear()
        self.named.clear()
