"""The policy: a hybrid of gated delta linear attention, sparse latent attention and experts."""
