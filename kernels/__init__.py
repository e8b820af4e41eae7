"""Operations: one folder each, with ``reference.py`` as the truth."""
