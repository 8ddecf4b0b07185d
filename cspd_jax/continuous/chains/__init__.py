"""Windows of tokens whose denoising chains are coupled with those of the last round."""
