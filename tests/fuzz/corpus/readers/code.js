def parse(text):
    return text.strip()
