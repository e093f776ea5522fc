"""What steps the envs with the policies that act in them: in this process, and elsewhere later."""
