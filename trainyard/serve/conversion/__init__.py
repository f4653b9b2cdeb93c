"""Adapters from one tool's layout to another's and back, bit for bit, without torch.

    peft   adapter_config.json + adapter_model.safetensors    what this product stores, and what vLLM and PEFT read
    mlx    adapter_config.json + adapters.safetensors         mlx-lm
    gguf   one file                                           llama.cpp and ollama

No number is changed: matrices are transposed or their rows reordered, in their original dtype, so
`there(back(x)) == x` is true for every byte of every weight. What a layout cannot express is refused with
`E-ADAPTER-INVALID`, never dropped.
"""
