"""The supernet in its fast form: operations of several edges in one."""
