"""Text of prompts: tokenizer files, cleaning of captions and the prompt templates of models."""
