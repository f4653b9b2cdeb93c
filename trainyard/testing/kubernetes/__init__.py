"""Double of a Kubernetes cluster: the API of jobs and pods, and a node that runs each pod's command as a local process.

    with serve_cluster(ClusterDouble(images={"registry.example.com/trainyard:1"})) as address:
        write_kubeconfig(path, address)                    # KUBECONFIG=path prefect worker start --type kubernetes

Bodies are read by the models of the official client (`kubernetes`), and every field that they do not know is recorded,
as a cluster warns of it. Lists and watches have the cluster's wire, so that Prefect's worker and its observer (kopf)
run unchanged. Not a cluster: one node, no mounts (a path in a pod is that path of this machine), and
of a scheduler only GPUs, node labels and images.
"""
