"""What every page is made of: figures, tables, words, the theme, acts with a reason."""
