"""Attacks on whoever reads an answer's source: the grader parses it, compares it and prints it in pages.

Each is a text that some parser, regular expression or comparison takes very long for, or dies of.
"""

from attacks import RIGHT, WRONG, attack


@attack()
def chain_of_attributes() -> str:
    """One expression of a hundred thousand attributes."""
    return WRONG + "\nif 0: x = a" + ".a" * 100_000 + "\n"


@attack()
def chain_of_sums() -> str:
    """One sum of a hundred thousand terms."""
    return WRONG + "\nx = 1" + " + 1" * 100_000 + "\n"


@attack()
def chain_of_elif() -> str:
    """An `if` with twenty thousand branches, which nest in the syntax tree."""
    return WRONG + "\nif 0: pass\n" + "elif 0: pass\n" * 20_000


@attack()
def chain_of_minus() -> str:
    """A hundred thousand minus signs."""
    return WRONG + "\nx = " + "-" * 100_000 + "1\n"


@attack()
def chain_of_lambdas() -> str:
    """Ten thousand functions in functions."""
    return WRONG + "\nx = " + "lambda: " * 10_000 + "1\n"


@attack()
def chain_of_comprehensions() -> str:
    """A comprehension of five thousand loops, and conditions in conditions."""
    return WRONG + "\nx = [0" + " for a in b" * 5_000 + "]\n" + "y = " + "1 if 1 else " * 5_000 + "1\n"


@attack()
def brackets() -> str:
    """More brackets than the parser takes."""
    return WRONG + "\nx = " + "(" * 10_000 + ")" * 10_000 + "\n"


@attack()
def null_bytes() -> str:
    """Null bytes, form feeds and other controls in the source."""
    return WRONG + "\nx = 'a\x00b'\n\x0c\x1b[2J\x07\n"


@attack()
def half_characters() -> str:
    """Halves of characters in the source, that no file can hold."""
    return WRONG + "\n# \ud800 \udfff \udc80\n"


@attack()
def encodings() -> str:
    """Declares an encoding that would change what the source says."""
    return "# -*- coding: rot13 -*-\n# coding: utf-7\n" + WRONG


@attack()
def wide_integers() -> str:
    """Integers of five thousand digits, and powers of powers that a compiler might fold."""
    return WRONG + "\nx = " + "9" * 5_000 + "\ny = 0 and 9**9**9**9\n"


@attack()
def backticks() -> str:
    """Texts that regular expressions for markdown take long for."""
    return WRONG.replace("return 0", 'raise ValueError("*" * 20_000 + "`" * 20_000 + "**a*b" * 5_000)')


@attack()
def five_megabytes() -> str:
    """Five megabytes of comments in front of the answer."""
    return "# " + "lorem ipsum " * 400_000 + "\n" + WRONG


@attack()
def two_hundred_thousand_lines() -> str:
    """Two hundred thousand lines of statements, each of them different, to be compared with everybody's."""
    return WRONG + "".join(f"x{number} = {number}\n" for number in range(50_000))


@attack("nothing")
def honest_and_long() -> str:
    """Not an attack: a right answer below a thousand lines of comments."""
    return "".join(f"# line {number} of my thoughts\n" for number in range(1000)) + RIGHT["target"]
