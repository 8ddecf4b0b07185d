"""Windows of tokens whose denoising chains are coupled with the last round's."""
