"""Doubles of cloud providers: real HTTP servers, request bodies validated by the types of the providers' own clients.

    with serving(TogetherDouble()) as server:
        environment = {"TOGETHER_BASE_URL": server.url, "TOGETHER_API_KEY": KEY}

They are what Trainyard's providers are tested against; the services themselves were not called. A double keeps what it
was asked, moves a job along its states by one for each look at it, and has faults that a seed chooses (`faults.py`).
"""
