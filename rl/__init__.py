"""The learner's side: controller, curriculum, advantages, losses, learner, sync, ledger."""
