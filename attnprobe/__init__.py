"""attnprobe: what the attention heads of a pretrained model compute, with a proof."""
