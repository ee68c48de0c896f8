"""`context`: the old bits predict the change (wire/FORMAT.md, section 6).

`table` is what travels, `fitting` makes one from counts, `codec` codes frames.
"""
