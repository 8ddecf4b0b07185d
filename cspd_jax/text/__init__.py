"""The text side of models: tokenizer files and prompts written as the models know them."""
