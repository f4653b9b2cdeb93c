"""The OpenAI wire: files, uploads, fine-tuning jobs, models and completions as the OpenAI API has them.

An OpenAI client with `OPENAI_BASE_URL=http://127.0.0.1:8898/openai/v1` and a token of this home as its key trains and
chats here. Each route reads OpenAI's shape, calls the same operations as every other surface, and writes OpenAI's
shape: jobs, files and adapters are those of this home. A field that has no effect here is refused by its name.
"""
