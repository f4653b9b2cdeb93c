# The machine image of a night: an L4 spot machine with the training stack and the units of ../systemd.
# packer init . && packer build -var project_id=... nightly.pkr.hcl
packer {
  required_plugins {
    googlecompute = {
      source  = "github.com/hashicorp/googlecompute"
      version = ">= 1.1.6"
    }
  }
}

variable "project_id" {
  type = string
}

variable "zone" {
  type    = string
  default = "europe-west4-a"
}

variable "repository" {
  type        = string
  default     = ".."
  description = "Folder of the checkout, copied into the image."
}

source "googlecompute" "night" {
  project_id              = var.project_id
  zone                    = var.zone
  machine_type            = "g2-standard-4"
  on_host_maintenance     = "TERMINATE"
  disk_size               = 200
  source_image_family     = "common-cu128-ubuntu-2404-nvidia-570"
  source_image_project_id = ["deeplearning-platform-release"]
  image_family            = "trainyard-night"
  ssh_username            = "packer"
}

build {
  sources = ["source.googlecompute.night"]

  provisioner "file" {
    source      = "${var.repository}/"
    destination = "/tmp/trainyard"
  }

  provisioner "shell" {
    script = "${path.root}/install.sh"
  }
}
