"""The words of every picture that a test of this folder makes are readable."""

from contrast_check import words_stand_out  # noqa: F401  a fixture that every test uses
