"""The small vocabulary that the shipped domains draw from: short, common, lower case."""

NOUNS: tuple[str, ...] = (
    "amber", "apple", "basil", "beach", "birch", "bread", "bridge", "candle", "cedar", "cloud",
    "copper", "coral", "desert", "falcon", "field", "forest", "garden", "glass", "grape",
    "harbor", "honey", "island", "jacket", "ladder", "lemon", "linen", "lion", "maple",
    "marble", "meadow", "mint", "mirror", "mountain", "olive", "orange", "otter", "panda",
    "paper", "peach", "pearl", "pencil", "pepper", "pine", "planet", "pocket", "river",
    "rocket", "rose", "sailor", "salt", "silver", "spoon", "star", "stone", "sugar", "table",
    "tiger", "tower", "tulip", "valley", "violet", "wagon", "willow", "winter", "wolf",
)  # fmt: skip
