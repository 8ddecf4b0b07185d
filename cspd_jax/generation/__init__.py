"""From prompts to images: models, decoding in batches, results and folders of images."""
