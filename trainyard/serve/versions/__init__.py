"""Life of an adapter version after its deployment.

promotion.py    make a version live again, or the one before it
publication.py  what is published of a version, and what of a publication is believed
hub.py          to and from the Hugging Face Hub
bucket.py       to and from an object store
"""
