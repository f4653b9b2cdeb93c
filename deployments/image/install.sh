#!/usr/bin/env bash
# Puts the checkout that Packer copied to /tmp/trainyard into its place, with its units switched off.
set -euo pipefail
sudo useradd --system --create-home --home-dir /opt/trainyard trainyard
sudo cp -a /tmp/trainyard/. /opt/trainyard/
sudo chown -R trainyard: /opt/trainyard
sudo -u trainyard make -C /opt/trainyard setup
sudo install -d -m 750 -g trainyard /etc/trainyard
printf '%s\n' 'TRAINYARD_HOME=/opt/trainyard/.trainyard' 'DO_NOT_TRACK=1' | sudo tee /etc/trainyard/environment >/dev/null
sudo cp /opt/trainyard/deployments/systemd/*.service /etc/systemd/system/
sudo systemctl daemon-reload
